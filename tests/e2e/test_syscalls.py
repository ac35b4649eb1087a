#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The system calls of preallocation on real file systems, as strace sees
them: which method is taken, in which order, and that nothing else is done
to the image.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e import (MIB, MODES, READS, WRITE_ZEROES, TargetCase,  # noqa: E402
                 calls_on, changes, each, fallocates, injected_calls, main,
                 make_image, offset_of, patched, stock)
from syscalls import (FILE_CALLS, WRITES, in_flight_max,  # noqa: E402
                      strace_calls)

TRACED = FILE_CALLS + READS
SIZE = 64 * MIB


class WithoutFallocate:
    """Tests on file systems that have no fallocate(2)."""

    def create(self, mode, size=SIZE):
        calls = strace_calls(patched.create(mode, self.image, size), TRACED)
        self.assertAllocatedZeros(self.image, size)
        return calls

    @each(*MODES)
    def test_create_sets_the_length_before_it_writes(self, mode):
        calls = self.create(mode)
        made = changes(self.image, calls)
        first = next(i for i, c in enumerate(made) if c[0] in WRITES)
        self.assertEqual(made[first - 1], ('ftruncate', str(SIZE), None))

    @each(*MODES)
    def test_create_writes_large_pieces_once(self, mode):
        writes = calls_on(self.image, self.create(mode), WRITES)
        self.assertGreaterEqual(min(w.result for w in writes), MIB)
        end = 0
        for write in sorted(writes, key=offset_of):
            self.assertEqual((offset_of(write), write.error), (end, None))
            end += write.result
        self.assertEqual(end, SIZE)

    @each(*MODES)
    def test_create_has_one_write_in_flight(self, mode):
        """Two would lay the file out in pieces, see maps_single_blocks()."""
        writes = calls_on(self.image, self.create(mode), WRITES)
        self.assertEqual(in_flight_max(writes), 1)

    def test_falloc_asks_the_file_system_once(self):
        self.assertEqual(fallocates(self.image, self.create('falloc')),
                         [('0', 0, SIZE, 'EOPNOTSUPP')])

    def test_auto_asks_the_file_system_for_either_method_once(self):
        self.assertEqual(fallocates(self.image, self.create('auto')),
                         [(WRITE_ZEROES, 0, SIZE, 'EOPNOTSUPP'),
                          ('0', 0, SIZE, 'EOPNOTSUPP')])

    def test_full_does_not_ask(self):
        self.assertEqual(fallocates(self.image, self.create('full')), [])

    def test_auto_of_an_unaligned_size_asks_for_fallocate_only(self):
        self.assertEqual(fallocates(self.image,
                                    self.create('auto', MIB + 512)),
                         [('0', 0, MIB + 512, 'EOPNOTSUPP')])

    @each(*MODES)
    def test_create_reads_nothing(self, mode):
        calls = self.create(mode)
        self.assertEqual(calls_on(self.image, calls, READS), [])

    @each(*MODES)
    def test_create_syncs_when_all_is_written(self, mode):
        calls = self.create(mode)
        written = max(c.start + c.seconds
                      for c in calls_on(self.image, calls, WRITES))
        syncs = calls_on(self.image, calls, ('fsync', 'fdatasync'))
        descriptors = {c.args[0] for c in syncs}
        writers = {c.args[0] for c in calls_on(self.image, calls, WRITES)}
        self.assertGreaterEqual(min(c.start for c in syncs), written)
        self.assertLessEqual(writers, descriptors)

    @each(*MODES)
    def test_flags_of_the_descriptor_are_never_set(self, mode):
        calls = calls_on(self.image, self.create(mode), ('fcntl',))
        self.assertTrue(calls)      # locks
        self.assertEqual([c for c in calls if c.args[1] == 'F_SETFL'], [])

    @each(*MODES)
    def test_image_is_opened_a_second_time_and_closed(self, mode):
        calls = self.create(mode)
        opened = [c for c in calls if c.name == 'openat' and
                  c.args[1].startswith('"/proc/self/fd/')]
        self.assertEqual(len(opened), 1)
        self.assertIn('O_DIRECT', opened[0].args[2])
        self.assertIn('O_CLOEXEC', opened[0].args[2])
        second = f'{opened[0].result}<{self.image}>'
        closed = [c for c in calls_on(self.image, calls, ('close',))
                  if c.args[0] == second]
        self.assertEqual([c.result for c in closed], [0])

    @each(*[(mode, direct) for mode in MODES for direct in (False, True)])
    def test_resize_writes_from_the_old_end_on(self, mode, direct):
        data = make_image(self.image, MIB + 512)
        size = MIB + 512 + SIZE
        calls = strace_calls(patched.resize(mode, self.image, size,
                                            direct=direct), TRACED)
        writes = calls_on(self.image, calls, WRITES)
        done = [w for w in writes if w.error is None]
        self.assertEqual(min(offset_of(w) for w in writes), len(data))
        self.assertEqual(sum(w.result for w in done), SIZE)
        self.assertLess(len(writes), 100)
        self.assertAllocatedZeros(self.image, size, data)

    @each(*[(mode, size) for mode in MODES for size in (100, MIB + 100)])
    def test_direct_resize_from_within_a_sector(self, mode, size):
        """The write up to there is refused, as it is not aligned."""
        data = make_image(self.image, size)
        calls = strace_calls(patched.resize(mode, self.image, SIZE,
                                            direct=True), TRACED)
        writes = calls_on(self.image, calls, WRITES)
        self.assertEqual([(offset_of(w), w.error) for w in writes
                          if w.error], [(size, 'EINVAL')])
        self.assertAllocatedZeros(self.image, SIZE, data)

    # ---- faults ----

    def create_with(self, mode, *faults):
        result, calls = injected_calls(
            patched.create(mode, self.image, SIZE), *faults)
        self.assertEqual(result.status, 0, result.err)
        self.assertAllocatedZeros(self.image, SIZE)
        return calls

    def test_interrupted_fallocate_is_repeated(self):
        calls = self.create_with('falloc',
                                 'fallocate:error=EINTR:when=1..3')
        self.assertEqual([f[3] for f in fallocates(self.image, calls)],
                         3 * ['EINTR'] + ['EOPNOTSUPP'])

    @each('falloc', 'auto')
    def test_fallocate_that_is_interrupted_for_ever_is_given_up(self, mode):
        calls = self.create_with(mode, 'fallocate:error=EINTR')
        tries = [f for f in fallocates(self.image, calls) if f[0] == '0']
        self.assertGreater(len(tries), 1)
        self.assertLessEqual(len(tries), 100)

    @each('ENOSYS', 'EINVAL', 'EPERM')
    def test_refusal_by_a_sandbox(self, name):
        self.create_with('falloc', f'fallocate:error={name}')

    @each('pwritev:error=EINTR:when=1..3', 'fsync:error=EINTR:when=1..3',
          'ftruncate:error=EINTR:when=2..4')
    def test_passing_fault_does_not_matter(self, fault):
        self.create_with('full', fault)

    @each(*[(mode, fault, text) for mode in MODES for fault, text in (
        ('pwritev:error=ENOSPC:when=2', 'No space left on device'),
        ('pwritev:error=EIO:when=2', 'Input/output error'),
        ('pwritev:retval=0:when=2', 'No space left on device'),
        ('pwritev:error=EINVAL', 'Invalid argument'),
        ('fsync:error=EIO:when=1', 'Input/output error'),
        ('ftruncate:error=EIO:when=1', 'Input/output error'))])
    def test_resize_that_fails_leaves_the_file_as_it_was(self, mode, fault,
                                                         text):
        data = make_image(self.image, MIB + 512)
        result, _ = injected_calls(
            patched.resize(mode, self.image, MIB + 512 + SIZE), fault)
        self.assertEqual(result.status, 1, result)
        self.assertIn(text, result.err)
        self.assertUnchanged(self.image, data)

    @each(*MODES)
    def test_works_without_proc(self, mode):
        command = ' '.join(str(word) for word in
                           patched.create(mode, self.image, SIZE))
        self.succeeds(['unshare', '--mount', 'sh', '-c',
                       f'mount -t tmpfs none /proc && exec {command}'])
        self.assertAllocatedZeros(self.image, SIZE)


class TestExt2(WithoutFallocate, TargetCase):
    target = 'ext2'


class TestExt3(WithoutFallocate, TargetCase):
    target = 'ext3'


class TestExt4WithoutExtents(WithoutFallocate, TargetCase):
    target = 'ext4-noextent'


class WithFallocate:
    """Tests on file systems that have fallocate(2)."""

    def traced(self, command):
        self.image.unlink(missing_ok=True)
        return strace_calls(command, TRACED)

    def test_falloc_is_one_call_and_the_first_block(self):
        calls = self.traced(patched.create('falloc', self.image, SIZE))
        self.assertEqual(fallocates(self.image, calls), [('0', 0, SIZE, None)])
        writes = calls_on(self.image, calls, WRITES)
        self.assertEqual([(offset_of(w), w.result) for w in writes],
                         [(0, 4096)])
        self.assertAllocatedZeros(self.image, SIZE)

    def test_the_first_block_is_written_after_the_allocation(self):
        """Alignment is probed by reading it, and needs a written block."""
        calls = self.traced(patched.create('falloc', self.image, SIZE))
        names = [c[0] for c in changes(self.image, calls)]
        self.assertLess(names.index('fallocate'),
                        min(names.index(n) for n in names if n in WRITES))

    @each('off', 'falloc')
    def test_create_does_what_stock_does(self, mode):
        self.assertEqual(
            changes(self.image, self.traced(
                patched.create(mode, self.image, SIZE))),
            changes(self.image, self.traced(
                stock.create(mode, self.image, SIZE))))

    @each('off', 'falloc')
    def test_resize_does_what_stock_does(self, mode):
        done = []
        for qemu in (stock, patched):
            make_image(self.image, MIB + 512)
            done.append(changes(self.image, strace_calls(
                qemu.resize(mode, self.image, SIZE), TRACED)))
        self.assertEqual(*done)
        self.assertTrue(done[0])

    def test_resize_falloc_is_one_call_from_the_old_end(self):
        data = make_image(self.image, MIB + 512)
        calls = strace_calls(patched.resize('falloc', self.image, SIZE))
        self.assertEqual(fallocates(self.image, calls),
                         [('0', MIB + 512, SIZE - MIB - 512, None)])
        self.assertEqual(calls_on(self.image, calls, WRITES), [])
        self.assertAllocatedZeros(self.image, SIZE, data)

    def auto_is_native(self, calls, start, end):
        """Offloaded where the device can do it, one fallocate elsewhere."""
        asked = fallocates(self.image, calls)
        self.assertEqual(asked[0][:3], (WRITE_ZEROES, start, end - start))
        if asked[0][3] is not None:
            self.assertEqual(asked[0][3], 'EOPNOTSUPP')
            self.assertEqual(asked[1], ('0', start, end - start, None))
        self.assertEqual(len(asked), 2 if asked[0][3] else 1)

    def test_auto_asks_for_the_faster_method_first(self):
        calls = self.traced(patched.create('auto', self.image, SIZE))
        self.auto_is_native(calls, 0, SIZE)
        self.assertAllocatedZeros(self.image, SIZE)

    def test_resize_auto(self):
        data = make_image(self.image, 2 * MIB)
        calls = strace_calls(patched.resize('auto', self.image, SIZE))
        self.auto_is_native(calls, 2 * MIB, SIZE)
        self.assertEqual(calls_on(self.image, calls, WRITES), [])
        self.assertAllocatedZeros(self.image, SIZE, data)

    def test_auto_of_an_unaligned_range_is_falloc(self):
        for start, end in ((0, SIZE + 512), (MIB + 512, SIZE)):
            with self.subTest(start=start, end=end):
                data = make_image(self.image, start)
                calls = strace_calls(patched.resize('auto', self.image, end))
                self.assertEqual(fallocates(self.image, calls),
                                 [('0', start, end - start, None)])
                self.assertAllocatedZeros(self.image, end, data)

    def test_full_never_allocates_without_writing(self):
        calls = self.traced(patched.create('full', self.image, SIZE))
        self.assertEqual(fallocates(self.image, calls), [])
        writes = calls_on(self.image, calls, WRITES)
        self.assertEqual(sum(w.result for w in writes), SIZE)
        self.assertGreaterEqual(min(w.result for w in writes), MIB)
        self.assertAllocatedZeros(self.image, SIZE)

    def test_full_to_an_unaligned_size_without_the_page_cache(self):
        data = make_image(self.image, MIB + 512)
        self.succeeds(patched.resize('full', self.image, SIZE + 512,
                                     direct=True))
        self.assertAllocatedZeros(self.image, SIZE + 512, data)


class TestExt4(WithFallocate, TargetCase):
    target = 'ext4'


class TestXfs(WithFallocate, TargetCase):
    target = 'xfs'


class TestBtrfs(WithFallocate, TargetCase):
    target = 'btrfs'


class TestTmpfs(WithFallocate, TargetCase):
    target = 'tmpfs'


if __name__ == '__main__':
    main()
