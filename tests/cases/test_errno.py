#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases where a system call fails that way: what means "try the next
method", what is the result, and what is left of the image then.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (FORMATS, ImageChecks, bytes_written,  # noqa: E402
                   product, writes_on)
from e2e import (MIB, MODES, FuseCase, TargetCase,  # noqa: E402
                 allocated, each, fallocates, injected_calls, main,
                 make_image, patched)

SIZE = 24 * MIB
OLD = MIB + 512
TEXTS = {
    'ENOSPC': 'No space left on device',
    'EDQUOT': 'Disk quota exceeded',
    'EFBIG': 'File too large',
    'EIO': 'Input/output error',
    'EROFS': 'Read-only file system',
    'ENOMEM': 'Cannot allocate memory',
    'EBADF': 'Bad file descriptor',
    'ETXTBSY': 'Text file busy',
}
NAMED = ('ENOSPC', 'EDQUOT', 'EFBIG', 'EIO')
SIBLINGS = tuple(name for name in TEXTS if name not in NAMED)
NATIVE = ('falloc', 'auto')
PROCESS_LIMIT = ['timeout', '--kill-after=5', '120']
METADATA = 2 * MIB          # of a qcow2 image, at most


def creation_text(name, fmt):
    if name == 'EFBIG':
        return f"The image size is too large for file format '{fmt}'"
    return TEXTS[name]


class Errors(ImageChecks):
    """Errors that are the result: nothing else is tried."""

    def failed_create(self, mode, fmt, name):
        result, calls = injected_calls(
            patched.create(mode, self.image, SIZE, fmt),
            f'fallocate:error={name}')
        self.assertEqual(result.status, 1, result)
        self.assertIn(str(self.image), result.err)
        self.assertIn(creation_text(name, fmt), result.err)
        return calls

    def failed_resize(self, mode, fmt, name):
        result, calls = injected_calls(
            patched.resize(mode, self.image, SIZE, fmt=fmt),
            f'fallocate:error={name}')
        self.assertEqual(result.status, 1, result)
        self.assertIn(TEXTS[name], result.err)
        # Neither tried again nor replaced by another method
        self.assertEqual(len(fallocates(self.image, calls)), 1)
        return calls

    @each(*product(NATIVE, NAMED))
    def test_B16_create_fails_and_writes_nothing(self, mode, name):
        """A full disk made the program write zeros until it was fuller."""
        calls = self.failed_create(mode, 'raw', name)
        self.assertEqual(len(fallocates(self.image, calls)), 1)
        self.assertEqual(writes_on(self.image, calls), [])
        self.assertUnchanged(self.image, b'')

    @each(*product(NATIVE, NAMED))
    def test_B16_resize_fails_and_writes_nothing(self, mode, name):
        data = make_image(self.image, OLD)
        blocks = allocated(self.image)
        calls = self.failed_resize(mode, 'raw', name)
        self.assertEqual(writes_on(self.image, calls), [])
        self.assertUnchanged(self.image, data)
        self.assertEqual(allocated(self.image), blocks)

    @each(*product(NATIVE, NAMED))
    def test_B16_create_of_qcow2_writes_metadata_at_most(self, mode, name):
        calls = self.failed_create(mode, 'qcow2', name)
        self.assertLessEqual(bytes_written(self.image, calls), METADATA)
        self.assertFalse(self.image.exists())

    @each(*product(NATIVE, NAMED))
    def test_B16_resize_of_qcow2_writes_metadata_at_most(self, mode, name):
        self.make(self.image, 'qcow2', 8 * MIB, data=MIB)
        calls = self.failed_resize(mode, 'qcow2', name)
        self.assertLessEqual(bytes_written(self.image, calls), METADATA)
        self.assertContent(self.image, 'qcow2', 8 * MIB, data=MIB)

    @each(*NAMED)
    def test_B16_full_does_not_ask(self, name):
        calls = self.calls_of(patched.create('full', self.image, SIZE),
                              f'fallocate:error={name}')
        self.assertEqual(fallocates(self.image, calls), [])
        self.assertAllocated(self.image, 'raw', SIZE)

    @each(*product(NATIVE, ('EIO',) + SIBLINGS))
    def test_B48_create_is_never_silently_sparse(self, mode, name):
        """Exit status 0, and a sparse file."""
        calls = self.failed_create(mode, 'raw', name)
        self.assertEqual(writes_on(self.image, calls), [])
        self.assertUnchanged(self.image, b'')

    @each(*product(NATIVE, ('EIO',) + SIBLINGS, FORMATS))
    def test_B48_resize_is_never_silently_sparse(self, mode, name, fmt):
        self.make(self.image, fmt, 8 * MIB, data=MIB)
        self.failed_resize(mode, fmt, name)
        self.assertContent(self.image, fmt, 8 * MIB, data=MIB)

    @each(*NATIVE)
    def test_B48_luks_is_never_silently_sparse(self, mode):
        result, _ = injected_calls(
            patched.img('create', '-f', 'luks', '--object',
                        'secret,id=s,data=passphrase', '-o',
                        f'key-secret=s,iter-time=10,preallocation={mode}',
                        self.image, SIZE), 'fallocate:error=EIO')
        self.assertEqual(result.status, 1, result)
        self.assertIn(TEXTS['EIO'], result.err)

    @each(*NATIVE)
    def test_B48_allocation_of_a_data_file_fails_the_creation(self, mode):
        data_file = self.t.dir / 'data'
        result, _ = injected_calls(
            patched.img('create', '-f', 'qcow2', '-o',
                        f'preallocation={mode},data_file={data_file}',
                        self.image, SIZE), 'fallocate:error=EIO')
        self.assertEqual(result.status, 1, result)
        self.assertIn(TEXTS['EIO'], result.err)

    @each(*product(MODES, ('ENOSPC', 'EDQUOT', 'EFBIG', 'EIO', 'EROFS')))
    def test_B48_failed_write_fails_the_resize(self, mode, name):
        """The same for the method that comes after a refusal."""
        data = make_image(self.image, OLD)
        result, _ = injected_calls(
            patched.resize(mode, self.image, SIZE),
            'fallocate:error=EOPNOTSUPP',
            f'pwritev:error={name}')
        self.assertEqual(result.status, 1, result)
        self.assertIn(TEXTS[name], result.err)
        self.assertUnchanged(self.image, data)


class Refusals(ImageChecks):
    """Answers that mean: try the next method."""

    def assertFallsBack(self, mode, fmt, command, *faults):
        data = 0
        if command == 'resize':
            data = MIB
            self.make(self.image, fmt, 8 * MIB, data=data)
            words = patched.resize(mode, self.image, SIZE, fmt=fmt)
        else:
            words = patched.create(mode, self.image, SIZE, fmt)
        calls = self.calls_of(PROCESS_LIMIT + words, *faults)
        self.assertContent(self.image, fmt, SIZE, data=data)
        self.assertGreaterEqual(allocated(self.image), SIZE - 8 * MIB)
        return calls

    @each(*product(NATIVE, FORMATS, ('create', 'resize')))
    def test_B20_enosys_falls_back(self, mode, fmt, command):
        """Sandboxes answer ENOSYS for what they do not know."""
        calls = self.assertFallsBack(mode, fmt, command,
                                     'fallocate:error=ENOSYS')
        written = bytes_written(self.image, calls)
        self.assertGreaterEqual(written, SIZE - 8 * MIB)
        self.assertLessEqual(written, SIZE + METADATA)

    @each(*product(NATIVE, ('EOPNOTSUPP', 'ENOTTY', 'ENODEV', 'EINVAL',
                            'EPERM'), ('create', 'resize')))
    def test_B20_other_refusals_fall_back(self, mode, name, command):
        calls = self.assertFallsBack(mode, 'raw', command,
                                     f'fallocate:error={name}')
        self.assertGreaterEqual(bytes_written(self.image, calls),
                                SIZE - 8 * MIB)

    @each(*product(NATIVE, FORMATS, ('create', 'resize'), (1, 3)))
    def test_B19_interrupted_fallocate_is_repeated(self, mode, fmt, command,
                                                   times):
        """A signal in the middle failed the allocation."""
        calls = self.assertFallsBack(mode, fmt, command,
                                     f'fallocate:error=EINTR:when=1..{times}')
        asked = fallocates(self.image, calls)
        self.assertEqual([f[3] for f in asked[:times + 1]].count('EINTR'),
                         times)
        self.assertNotEqual(asked[times][3], 'EINTR')
        self.assertEqual(asked[0][:3], asked[times][:3])

    @each(*product(NATIVE, FORMATS, ('create', 'resize')))
    def test_B19_endless_interruption_is_no_endless_loop(self, mode, fmt,
                                                         command):
        """The next method is tried, and every byte is written."""
        calls = self.assertFallsBack(mode, fmt, command,
                                     'fallocate:error=EINTR')
        asked = [f[0] for f in fallocates(self.image, calls)]
        for method in set(asked):
            self.assertLessEqual(asked.count(method), 100)
        self.assertGreaterEqual(bytes_written(self.image, calls),
                                SIZE - 8 * MIB)

    @each(*product(MODES, ('pwritev', 'ftruncate')))
    def test_B19_endless_interruption_of_the_last_method(self, mode, call):
        """There is no method left: an error, and the old file."""
        data = make_image(self.image, OLD)
        when = '' if call == 'pwritev' else ':when=1..70'
        result, _ = injected_calls(
            PROCESS_LIMIT + patched.resize(mode, self.image, SIZE),
            'fallocate:error=EOPNOTSUPP', f'{call}:error=EINTR{when}')
        self.assertEqual(result.status, 1, result)
        self.assertIn('Interrupted system call', result.err)
        self.assertUnchanged(self.image, data)


class TestErrorsOnExt4(Errors, TargetCase):
    target = 'ext4'


class TestErrorsOnXfs(Errors, TargetCase):
    target = 'xfs'


class TestRefusalsOnExt4(Refusals, TargetCase):
    target = 'ext4'


class TestRefusalsOnExt3(Refusals, TargetCase):
    target = 'ext3'


class TestAnswersOfTheServer(ImageChecks, FuseCase):
    """The same answers, given by a real file system."""

    @each(*product(NATIVE, NAMED, ('create', 'resize')))
    def test_B16_nothing_is_written(self, mode, name, command):
        data = self.existing_image(OLD) if command == 'resize' else b''
        self.t.control(fallocate=name)
        text = (TEXTS if command == 'resize' else
                {name: creation_text(name, 'raw')})[name]
        self.fails(getattr(patched, command)(mode, self.image, SIZE), text)
        self.assertStats(write=0, fallocate=1)
        self.assertUnchanged(self.image, data)

    @each(*product(NATIVE, NAMED))
    def test_B16_resize_of_qcow2_is_tried_once(self, mode, name):
        """A second attempt on a full disk would cost as much again."""
        self.make(self.image, 'qcow2', 8 * MIB, data=MIB)
        self.t.reset()
        self.t.control(fallocate=name)
        self.fails(patched.resize(mode, self.image, SIZE, fmt='qcow2'),
                   TEXTS[name])
        self.assertStats(fallocate=1)
        self.assertLessEqual(self.t.stats()['write_bytes'], METADATA)
        self.assertContent(self.image, 'qcow2', 8 * MIB, data=MIB)

    @each(*product(NATIVE, ('create', 'resize')))
    def test_B19_endless_interruption(self, mode, command):
        data = self.existing_image(OLD) if command == 'resize' else b''
        self.t.control(fallocate='EINTR')
        self.succeeds(getattr(patched, command)(mode, self.image, SIZE),
                      timeout=120)
        self.assertLessEqual(self.t.stats()['fallocate'], 200)
        self.assertWrittenOnce(len(data), SIZE)

    @each(*product(NATIVE, ('create', 'resize')))
    def test_B48_nothing_is_written(self, mode, command):
        data = self.existing_image(OLD) if command == 'resize' else b''
        self.t.control(fallocate='EROFS')
        self.fails(getattr(patched, command)(mode, self.image, SIZE),
                   TEXTS['EROFS'])
        self.assertStats(write=0)
        self.assertUnchanged(self.image, data)


class TestServerWithoutTheCall(ImageChecks, FuseCase):
    """In a class of its own, as the kernel remembers the answer."""

    options = {'fallocate': 'ENOSYS'}

    @each(*product(NATIVE, FORMATS, ('create', 'resize')))
    def test_B20_enosys_of_the_server(self, mode, fmt, command):
        data = 0
        if command == 'resize':
            data = MIB
            self.make(self.image, fmt, 8 * MIB, data=data)
            words = patched.resize(mode, self.image, SIZE, fmt=fmt)
        else:
            words = patched.create(mode, self.image, SIZE, fmt)
        self.t.reset()
        self.succeeds(words)
        self.assertStats(write_one_byte=0)
        self.assertContent(self.image, fmt, SIZE, data=data)
        self.assertGreaterEqual(allocated(self.image), SIZE - 8 * MIB)


if __name__ == '__main__':
    main()
