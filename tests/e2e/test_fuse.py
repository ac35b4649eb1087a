#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Preallocation on a file system without fallocate(2), as the server of
that file system sees it: how many requests, of which size, what they write,
and what becomes of the image when one of them fails.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e import (MIB, MODES, FuseCase, allocated, calls_on,  # noqa: E402
                 each, main, make_image, old_data, patched, run, stock)
from syscalls import WRITES, in_flight_max, strace_calls  # noqa: E402

GROWN_BY = 16 * MIB
REFUSALS = ('EOPNOTSUPP', 'EINVAL', 'EPERM', 'EINTR')
ERRORS = {
    'ENOSPC': 'No space left on device',
    'EDQUOT': 'Disk quota exceeded',
    'EIO': 'Input/output error',
    'EFBIG': 'File too large',
    'EROFS': 'Read-only file system',
}
WRITE_ERRORS = ('EIO', 'ENOSPC', 'EDQUOT', 'EFBIG')
NOT_ALLOCATED = 'Could not preallocate new data: '
NOT_WRITTEN = 'Could not write zeros for preallocation: '
NOT_FLUSHED = 'Could not flush file to disk: '

# The requests that the kernel lets pass for a mode; a kernel that knows
# FALLOC_FL_WRITE_ZEROES may or may not ask FUSE for it.
FALLOCATES = {'falloc': (1,), 'full': (0,), 'auto': (1, 2)}


def creation_error(what, name):
    """What qemu-img says when a creation fails with the errno NAME."""
    if name == 'EFBIG':
        return "The image size is too large for file format 'raw'"
    return what + ERRORS[name]


class TestMeasuringStick(FuseCase):
    """Stock QEMU does what the other tests say that ours does not."""

    def test_stock_falloc_writes_one_byte_per_4_kib(self):
        self.succeeds(stock.create('falloc', self.image, 8 * MIB))
        self.assertStats(write_one_byte=8 * MIB // 4096, fallocate=1)

    def test_stock_full_writes_64_kib_at_a_time(self):
        self.t.control(latency_us=1000)
        self.succeeds(stock.create('full', self.image, 8 * MIB))
        self.assertStats(write=128, write_in_flight_max=1)


class TestCreate(FuseCase):
    @each(*MODES)
    def test_takes_few_requests_and_writes_each_byte_once(self, mode):
        size = 256 * MIB
        self.succeeds(patched.create(mode, self.image, size))
        stats = self.t.stats()
        self.assertLessEqual(stats['write'], 300)
        self.assertGreaterEqual(stats['write_smallest'], 65536)
        self.assertWrittenOnce(0, size)
        self.assertStats(read=0)
        self.assertGreaterEqual(stats['fsync'], 1)
        self.assertAllocatedZeros(self.image, size)

    @each(*MODES)
    def test_keeps_several_writes_in_flight(self, mode):
        self.t.control(latency_us=5000)
        self.succeeds(patched.create(mode, self.image, 64 * MIB))
        self.assertGreaterEqual(self.t.stats()['write_in_flight_max'], 2)

    @each(*MODES)
    def test_keeps_two_calls_in_flight(self, mode):
        calls = strace_calls(patched.create(mode, self.image, 64 * MIB),
                             WRITES)
        self.assertEqual(in_flight_max(calls_on(self.image, calls, WRITES)),
                         2)

    @each(*MODES)
    def test_asks_once_for_fallocate(self, mode):
        self.succeeds(patched.create(mode, self.image, 64 * MIB))
        self.assertIn(self.t.stats()['fallocate'], FALLOCATES[mode])

    @each(*[(mode, size) for mode in MODES
            for size in (0, 512, 4096, MIB - 512, MIB + 512,
                         24 * MIB + 1536)])
    def test_any_size_is_written_once(self, mode, size):
        self.succeeds(patched.create(mode, self.image, size))
        self.assertWrittenOnce(0, size)
        self.assertAllocatedZeros(self.image, size)

    @each(*MODES)
    def test_what_the_file_held_before_is_gone(self, mode):
        self.existing_image(3 * MIB + 5)
        self.succeeds(patched.create(mode, self.image, 2 * MIB))
        self.assertAllocatedZeros(self.image, 2 * MIB)

    @each('off', 'metadata')
    def test_other_modes_write_as_little_or_fail_as_stock(self, mode):
        ours = run(patched.create(mode, self.image, 2 * MIB))
        stats = self.t.stats()
        self.image.unlink()
        self.t.reset()
        self.assertEqual(run(stock.create(mode, self.image, 2 * MIB)), ours)
        self.assertEqual(self.t.stats()['write_bytes'], stats['write_bytes'])


class TestCreateWhereFallocateWorks(FuseCase):
    options = {'fallocate': 'ok'}

    @each('falloc', 'auto')
    def test_is_one_request_and_the_first_block(self, mode):
        self.succeeds(patched.create(mode, self.image, 64 * MIB))
        self.assertIn(self.t.stats()['fallocate'], FALLOCATES[mode])
        self.assertStats(write=1)
        self.assertWrittenOnce(0, 4096)
        self.assertAllocatedZeros(self.image, 64 * MIB)

    def test_full_writes_all_the_same(self):
        self.succeeds(patched.create('full', self.image, 64 * MIB))
        self.assertStats(fallocate=0)
        self.assertWrittenOnce(0, 64 * MIB)


class TestResize(FuseCase):
    @each(*[(mode, size, cache) for mode in MODES
            for size in (0, 100, 512, 4608, MIB, MIB + 512)
            for cache in ('writeback', 'none')])
    def test_writes_from_the_old_end_on(self, mode, size, cache):
        data = self.existing_image(size)
        end = (size + 511) // 512 * 512 + GROWN_BY
        self.succeeds(patched.resize(mode, self.image, end,
                                     direct=cache == 'none'))
        self.assertWrittenOnce(size, end)
        self.assertIn(self.t.stats()['fallocate'], FALLOCATES[mode])
        self.assertStats(write_one_byte=0)
        self.assertGreaterEqual(self.t.stats()['fsync'], 1)
        self.assertAllocatedZeros(self.image, end, data)

    @each(*MODES)
    def test_to_the_same_size_is_refused(self, mode):
        data = self.existing_image(MIB)
        self.fails(patched.resize(mode, self.image, MIB),
                   'Preallocation can only be used for growing images')
        self.assertStats(write=0, fallocate=0)
        self.assertUnchanged(self.image, data)

    def test_relative_size(self):
        data = self.existing_image(MIB)
        self.succeeds(patched.resize('falloc', self.image, '+16M'))
        self.assertWrittenOnce(MIB, MIB + GROWN_BY)
        self.assertAllocatedZeros(self.image, MIB + GROWN_BY, data)

    @each(*[('falloc', 1), ('auto', 1), ('full', 0)])
    def test_refusal_is_remembered_while_the_image_is_open(self, mode,
                                                           asked):
        self.existing_image(MIB)
        self.succeeds(patched.io(
            '-f', 'raw', '-c', f'truncate -m {mode} 8M', '-c',
            f'truncate -m {mode} 16M', '-c', f'truncate -m {mode} 24M',
            self.image))
        # FUSE itself may have been asked for FALLOC_FL_WRITE_ZEROES, too.
        extra = 1 if mode == 'auto' else 0
        self.assertIn(self.t.stats()['fallocate'], (asked, asked + extra))
        self.assertWrittenOnce(MIB, 24 * MIB)

    def test_refusal_of_one_call_is_not_remembered(self):
        self.t.control(fallocate='EINVAL')
        self.existing_image(MIB)
        self.succeeds(patched.io(
            '-f', 'raw', '-c', 'truncate -m falloc 8M', '-c',
            'truncate -m falloc 16M', self.image))
        self.assertStats(fallocate=2)

    def test_refusal_is_not_remembered_for_the_next_process(self):
        self.existing_image(MIB)
        for size in (8 * MIB, 16 * MIB):
            self.succeeds(patched.resize('falloc', self.image, size))
        self.assertStats(fallocate=2)


class TestAnswersOfFallocate(FuseCase):
    @each(*[(name, mode) for name in REFUSALS for mode in ('falloc', 'auto')])
    def test_create_writes_after(self, name, mode):
        self.t.control(fallocate=name)
        self.succeeds(patched.create(mode, self.image, GROWN_BY))
        self.assertWrittenOnce(0, GROWN_BY)
        self.assertAllocatedZeros(self.image, GROWN_BY)

    @each(*[(name, mode) for name in REFUSALS for mode in ('falloc', 'auto')])
    def test_resize_writes_after(self, name, mode):
        self.t.control(fallocate=name)
        data = self.existing_image(4608)
        self.succeeds(patched.resize(mode, self.image, GROWN_BY))
        self.assertWrittenOnce(4608, GROWN_BY)
        self.assertAllocatedZeros(self.image, GROWN_BY, data)

    @each('falloc', 'auto')
    def test_endless_eintr_is_given_up(self, mode):
        self.t.control(fallocate='EINTR')
        self.succeeds(patched.create(mode, self.image, GROWN_BY))
        stats = self.t.stats()
        self.assertGreater(stats['fallocate'], 1)
        self.assertLessEqual(stats['fallocate'], 200)

    @each(*[(name, mode) for name in ERRORS for mode in ('falloc', 'auto')])
    def test_create_fails_without_writing_after(self, name, mode):
        self.t.control(fallocate=name)
        self.fails(patched.create(mode, self.image, GROWN_BY), self.image,
                   creation_error(NOT_ALLOCATED, name))
        self.assertStats(write=0)
        self.assertUnchanged(self.image, b'')

    @each(*[(name, mode) for name in ERRORS for mode in ('falloc', 'auto')])
    def test_resize_fails_without_writing_after(self, name, mode):
        self.t.control(fallocate=name)
        data = self.existing_image(4608)
        self.fails(patched.resize(mode, self.image, GROWN_BY),
                   NOT_ALLOCATED + ERRORS[name])
        self.assertStats(write=0)
        self.assertUnchanged(self.image, data)

    @each(*ERRORS)
    def test_full_does_not_ask(self, name):
        self.t.control(fallocate=name)
        self.succeeds(patched.create('full', self.image, GROWN_BY))
        self.assertAllocatedZeros(self.image, GROWN_BY)


class TestFallocateAnswersEnosys(FuseCase):
    """A class of its own, as the kernel remembers the answer."""

    @each('falloc', 'auto')
    def test_create_writes_after(self, mode):
        self.t.control(fallocate='ENOSYS')
        self.succeeds(patched.create(mode, self.image, GROWN_BY))
        self.assertWrittenOnce(0, GROWN_BY)
        self.assertAllocatedZeros(self.image, GROWN_BY)

    @each('falloc', 'auto')
    def test_resize_writes_after(self, mode):
        self.t.control(fallocate='ENOSYS')
        data = self.existing_image(4608)
        self.succeeds(patched.resize(mode, self.image, GROWN_BY))
        self.assertWrittenOnce(4608, GROWN_BY)
        self.assertAllocatedZeros(self.image, GROWN_BY, data)


class TestFaults(FuseCase):
    """Requests of the zero writer that fail."""

    @each(*[(mode, nth, name) for mode in MODES
            for nth, name in ((1, 'ENOSPC'), (8, 'EIO'), (8, 'EDQUOT'),
                              (8, 'EFBIG'), (17, 'ENOSPC'))])
    def test_resize_leaves_the_file_as_it_was(self, mode, nth, name):
        data = self.existing_image(4608)
        self.t.control(fail_write=f'{nth}:{name}')
        self.fails(patched.resize(mode, self.image, GROWN_BY + MIB),
                   NOT_WRITTEN + ERRORS[name])
        self.assertStats(faults=1)
        self.assertUnchanged(self.image, data)
        self.assertLessEqual(allocated(self.image), 8192)

    @each(*[(mode, name) for mode in MODES for name in WRITE_ERRORS])
    def test_create_leaves_an_empty_file(self, mode, name):
        self.t.control(fail_write=f'8:{name}')
        self.fails(patched.create(mode, self.image, GROWN_BY), self.image,
                   creation_error(NOT_WRITTEN, name))
        self.assertUnchanged(self.image, b'')

    @each(*[(mode, name) for mode in MODES
            for name in ('EIO', 'ENOSPC', 'EDQUOT')])
    def test_writes_through_the_page_cache_fail_alike(self, mode, name):
        self.t.control(refuse_o_direct=1, quota=f'{8 * MIB}:{name}')
        self.fails(patched.create(mode, self.image, GROWN_BY),
                   NOT_WRITTEN + ERRORS[name])
        self.assertUnchanged(self.image, b'')

    @each(*MODES)
    def test_nothing_is_written_after_a_failed_write(self, mode):
        self.t.control(fail_write='1:EIO')
        self.fails(patched.create(mode, self.image, 256 * MIB))
        # What was in flight with it, but not the rest.
        self.assertLess(self.t.stats()['write_bytes'], 128 * MIB)

    @each(*[(mode, nth) for mode in MODES for nth in (1, 2)])
    def test_failed_fsync_fails_the_resize(self, mode, nth):
        """Either of the descriptions: each tells the errors of its own."""
        data = self.existing_image(4608)
        self.t.control(fail_fsync=f'{nth}:EIO')
        self.fails(patched.resize(mode, self.image, GROWN_BY),
                   NOT_FLUSHED + ERRORS['EIO'])
        self.assertUnchanged(self.image, data)

    @each('EIO', 'ENOSPC', 'EDQUOT')
    def test_failed_fsync_fails_the_creation(self, name):
        self.t.control(fail_fsync=f'1:{name}')
        self.fails(patched.create('falloc', self.image, GROWN_BY),
                   self.image, NOT_FLUSHED + ERRORS[name])
        self.assertUnchanged(self.image, b'')

    @each(*[(mode, nth, accepted) for mode in MODES for nth in (1, 5)
            for accepted in (1, 4096, 5000)])
    def test_short_write_is_continued(self, mode, nth, accepted):
        data = self.existing_image(4608)
        self.t.control(refuse_o_direct=1, short_write=f'{nth}:{accepted}')
        self.succeeds(patched.resize(mode, self.image, GROWN_BY))
        self.assertStats(faults=1, write_rewritten=0)
        self.assertAllocatedZeros(self.image, GROWN_BY, data)

    @each(*MODES)
    def test_short_direct_write_is_not_taken_for_success(self, mode):
        """The kernel makes EIO of it where it splits requests."""
        data = self.existing_image(4096)
        self.t.control(short_write='5:4096')
        result = run(patched.resize(mode, self.image, GROWN_BY))
        self.assertStats(faults=1)
        if result.status == 0:
            self.assertAllocatedZeros(self.image, GROWN_BY, data)
        else:
            self.assertIn(NOT_WRITTEN + ERRORS['EIO'], result.err)
            self.assertUnchanged(self.image, data)

    @each(*MODES)
    def test_quota(self, mode):
        data = self.existing_image(4608)
        self.t.control(quota=f'{8 * MIB}:EDQUOT')
        self.fails(patched.resize(mode, self.image, GROWN_BY),
                   NOT_WRITTEN + ERRORS['EDQUOT'])
        self.assertUnchanged(self.image, data)

    @each(*MODES)
    def test_limit_of_the_file_size(self, mode):
        data = self.existing_image(4608)
        self.t.control(max_file_size=8 * MIB)
        self.fails(patched.resize(mode, self.image, GROWN_BY),
                   ERRORS['EFBIG'])
        self.assertStats(write=0)
        self.assertUnchanged(self.image, data)


class TestWithoutODirect(FuseCase):
    options = {'refuse_o_direct': 1}

    @each(*[(mode, size) for mode in MODES for size in (0, 4608, MIB + 512)])
    def test_goes_through_the_page_cache(self, mode, size):
        data = self.existing_image(size)
        self.succeeds(patched.resize(mode, self.image, size + GROWN_BY))
        self.assertWrittenOnce(size, size + GROWN_BY)
        self.assertStats(write_one_byte=0)
        self.assertAllocatedZeros(self.image, size + GROWN_BY, data)

    @each(*MODES)
    def test_create(self, mode):
        self.succeeds(patched.create(mode, self.image, 64 * MIB))
        self.assertLessEqual(self.t.stats()['write'], 1024)
        self.assertWrittenOnce(0, 64 * MIB)
        self.assertAllocatedZeros(self.image, 64 * MIB)


class TestWithWritebackCache(FuseCase):
    options = {'writeback': 1}

    @each(*[(mode, size) for mode in MODES for size in (0, 4608, MIB + 512)])
    def test_resize(self, mode, size):
        data = make_image(self.image, size)
        self.succeeds(patched.resize(mode, self.image, size + GROWN_BY))
        self.assertAllocatedZeros(self.image, size + GROWN_BY, data)
        self.assertStats(write_one_byte=0)

    @each(*MODES)
    def test_all_has_reached_the_server_when_create_ends(self, mode):
        self.t.control(refuse_o_direct=1)
        self.succeeds(patched.create(mode, self.image, 64 * MIB))
        self.assertWrittenOnce(0, 64 * MIB)

    @each(*MODES)
    def test_error_that_comes_with_the_fsync(self, mode):
        self.t.control(refuse_o_direct=1, quota=4 * MIB)
        self.fails(patched.create(mode, self.image, GROWN_BY), self.image)
        self.assertUnchanged(self.image, b'')


class TestConvert(FuseCase):
    def setUp(self):
        super().setUp()
        self.source = self.t.work / 'source'
        with open(self.source, 'wb') as file:
            file.truncate(32 * MIB)
            for start in (0, 5 * MIB + 4096, 20 * MIB, 31 * MIB):
                file.seek(start)
                file.write(old_data(MIB))

    def test_stock_falloc_writes_one_byte_per_4_kib(self):
        self.succeeds(stock.convert('falloc', self.source, self.image))
        self.assertStats(write_one_byte=32 * MIB // 4096)

    @each(*MODES)
    def test_image_is_equal_and_allocated(self, mode):
        self.succeeds(patched.convert(mode, self.source, self.image))
        self.assertEqual(self.image.read_bytes(), self.source.read_bytes())
        self.assertGreaterEqual(allocated(self.image),
                                os.stat(self.source).st_size)
        self.assertStats(write_one_byte=0)
        self.assertIn(self.t.stats()['fallocate'], FALLOCATES[mode])
        self.assertLessEqual(self.t.stats()['write'], 128)

    @each(*MODES)
    def test_failed_write_fails_it(self, mode):
        self.t.control(fail_write='8:ENOSPC')
        self.fails(patched.convert(mode, self.source, self.image),
                   ERRORS['ENOSPC'])


if __name__ == '__main__':
    main(needs_root=False)
