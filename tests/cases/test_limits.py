#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases of full disks, limits of file sizes and sizes that no file has."""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (FORMATS, ImageChecks, both,  # noqa: E402
                   bytes_written, known_to_stock, product,
                   same_but_for_the_mode, trace)
from e2e import (MIB, MODES, TargetCase, allocated, each,  # noqa: E402
                 file_size_limit, injected_calls, main, make_image, patched,
                 run, stock)

SIZE = 64 * MIB
TIB = 1 << 40
NO_SPACE = 'No space left on device'
TOO_LARGE = 'File too large'


class FullDisk(ImageChecks):
    """Tests where SIZE bytes do not fit."""

    OLD = MIB + 512
    FREE = 16 * MIB

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.t.fill(cls.FREE)
        directory = cls.t.dir / 'full'      # where no test removes it
        directory.mkdir()
        (cls.t.dir / '.filler').rename(directory / 'filler')

    @each(*product(MODES, FORMATS))
    def test_B21_create(self, mode, fmt):
        """The message did not say which file there was no space for."""
        left = []
        for command in both('create', mode, self.image, SIZE, fmt):
            self.image.unlink(missing_ok=True)
            self.fails(command, self.image, NO_SPACE)
            left.append(self.image.stat().st_size if self.image.exists()
                        else None)
            os.sync()
        self.assertEqual(*left)
        self.assertEqual(left[1], {'raw': 0, 'qcow2': None}[fmt])

    @each(*MODES)
    def test_B21_resize(self, mode):
        data = make_image(self.image, self.OLD)
        os.sync()
        blocks, free = allocated(self.image), self.t.free_bytes()
        self.fails(patched.resize(mode, self.image, SIZE), self.image,
                   NO_SPACE)
        os.sync()
        self.assertUnchanged(self.image, data)
        self.assertBlocks(blocks)
        self.assertGreaterEqual(self.t.free_bytes(), free - MIB)

    def assertBlocks(self, blocks):
        self.assertEqual(allocated(self.image), blocks)

    @each(*MODES)
    def test_B21_resize_of_qcow2(self, mode):
        self.make(self.image, 'qcow2', 4 * MIB, data=MIB)
        self.fails(patched.resize(mode, self.image, SIZE, fmt='qcow2'),
                   self.image, NO_SPACE)
        self.assertContent(self.image, 'qcow2', 4 * MIB, data=MIB)

    @each(*MODES)
    def test_B21_qcow2_preallocates_its_file_once(self, mode):
        """Zeros up to the end of the disk twice take twice as long."""
        self.make(self.image, 'qcow2', 4 * MIB)
        events = trace(patched.resize(mode, self.image, SIZE, fmt='qcow2'))
        self.assertEqual(events.result.status, 1, events.result)
        self.assertEqual(len(events.named('start')), 1)

    @each(*MODES)
    def test_B21_what_fits_succeeds_afterwards(self, mode):
        self.fails(patched.create(mode, self.image, SIZE))
        size = self.FREE // 4
        self.succeeds(patched.create(mode, self.image, size))
        self.assertAllocatedZeros(self.image, size)


class TestFullTmpfs(FullDisk, TargetCase):
    target = 'tmpfs'
    options = {'size_mib': 8}
    FREE = 8 * MIB


class TestFullExt4(FullDisk, TargetCase):
    target = 'ext4'
    options = {'size_mib': 64}

    def assertBlocks(self, blocks):
        """The map of the file may have grown by a block, and stays so."""
        self.assertLessEqual(allocated(self.image), blocks + 4096)


class TestFullExt3(FullDisk, TargetCase):
    target = 'ext3'
    options = {'size_mib': 64}


class SizeLimit(ImageChecks):
    """Tests with a limit for the length of files."""

    LIMIT = 8 * MIB
    limited = {'preexec_fn': file_size_limit(LIMIT)}

    @each(*product(MODES, ('8G', 2 * LIMIT, LIMIT + 512)))
    def test_B23_resize_beyond_the_limit(self, mode, size):
        """SIGXFSZ ended the program, its file half written."""
        data = make_image(self.image, MIB + 512)
        os.sync()
        blocks = allocated(self.image)
        result, calls = injected_calls(
            ['prlimit', f'--fsize={self.LIMIT}'] +
            patched.resize(mode, self.image, size))
        self.assertEqual(result.status, 1, result)
        self.assertIn(TOO_LARGE, result.err)
        self.assertEqual(bytes_written(self.image, calls), 0)
        self.assertUnchanged(self.image, data)
        self.assertEqual(allocated(self.image), blocks)

    @each(*product(MODES, ('8G', 2 * LIMIT)))
    def test_B23_create_beyond_the_limit(self, mode, size):
        result, calls = injected_calls(
            ['prlimit', f'--fsize={self.LIMIT}'] +
            patched.create(mode, self.image, size))
        self.assertEqual(result.status, 1, result)
        self.assertIn('The image size is too large', result.err)
        self.assertEqual(bytes_written(self.image, calls), 0)
        self.assertUnchanged(self.image, b'')

    @each(*MODES)
    def test_B23_resize_of_qcow2_beyond_the_limit(self, mode):
        self.make(self.image, 'qcow2', 4 * MIB, data=MIB)
        self.fails(patched.resize(mode, self.image, SIZE, fmt='qcow2'),
                   TOO_LARGE, **self.limited)
        self.assertContent(self.image, 'qcow2', 4 * MIB, data=MIB)

    @each(*MODES)
    def test_B23_up_to_the_limit(self, mode):
        data = make_image(self.image, MIB)
        self.succeeds(patched.resize(mode, self.image, self.LIMIT),
                      **self.limited)
        self.assertAllocatedZeros(self.image, self.LIMIT, data)


class TestSizeLimitOnExt4(SizeLimit, TargetCase):
    target = 'ext4'
    options = {'size_mib': 64}


class TestSizeLimitOnExt3(SizeLimit, TargetCase):
    target = 'ext3'
    options = {'size_mib': 64}


class TestSizeLimitOnFuse(SizeLimit, TargetCase):
    target = 'fuse'


class HugeSizes(ImageChecks):
    """Sizes that no file can have."""

    def left(self):
        """What is in the directory, and how long it is."""
        return {path.name: path.stat().st_size
                for path in self.t.dir.iterdir() if path.is_file()}

    @each(*product(('off', 'metadata') + MODES, (False, True)))
    def test_B24_qcow2_larger_than_a_file(self, mode, existing):
        """20 TiB on ext4 failed and left gigabytes behind."""
        runs = []
        for qemu, m in ((stock, known_to_stock(mode)), (patched, mode)):
            self._remove_files()
            if existing:
                make_image(self.image, MIB)
            result = run(qemu.img(
                'create', '-f', 'qcow2', '-o',
                f'preallocation={m},cluster_size=2M', self.image, 20 * TIB))
            runs.append((result, self.left()))
        (theirs, their_files), (ours, our_files) = runs
        self.assertSameAsStock(mode, theirs, ours)
        self.assertEqual(ours.status, 0 if mode == 'off' else 1)
        self.assertEqual(our_files, their_files)

    @each(*MODES)
    def test_B24_qcow2_cannot_grow_larger_than_a_file(self, mode):
        self.succeeds(patched.img('create', '-f', 'qcow2', '-o',
                                  'cluster_size=2M', self.image, 8 * MIB))
        self.succeeds(patched.io('-c', 'write -P 7 0 1M', self.image))
        self.fails(patched.resize(mode, self.image, 20 * TIB, fmt='qcow2'),
                   TOO_LARGE)
        self.assertContent(self.image, 'qcow2', 8 * MIB, data=MIB)

    MAX = (1 << 63) - 1
    SIZES = ('8E', '7E', MAX, MAX - 511, MAX + 1, '16E')

    @each(*product(('off',) + MODES, SIZES, FORMATS))
    def test_B28_create(self, mode, size, fmt):
        """The sum of offset and length overflowed."""
        runs = []
        for command in both('create', mode, self.image, size, fmt):
            self._remove_files()
            runs.append((run(command), self.left()))
        (theirs, their_files), (ours, our_files) = runs
        theirs = same_but_for_the_mode(theirs, mode)
        self.assertEqual((ours.status, ours.out), (1, theirs.out))
        # Ours may add a line that names the file.
        self.assertEqual(ours.err.splitlines()[0],
                         theirs.err.splitlines()[0])
        self.assertEqual(our_files, their_files)

    @each(*product(('off',) + MODES, SIZES + (
        '+7E', '+8E', f'+{MAX}', f'+{MAX - 2 * MIB + 1}')))
    def test_B28_resize(self, mode, size):
        data = make_image(self.image, MIB)
        theirs, ours = (run(qemu.img(
            'resize', '-f', 'raw', f'--preallocation={m}', self.image, size))
            for qemu, m in ((stock, known_to_stock(mode)), (patched, mode)))
        self.assertEqual(ours.status, 1)
        # Another call may have failed, but for the same reason.
        reasons = [r.err.splitlines()[0].rsplit(':', 1)[-1]
                   for r in (theirs, ours)]
        self.assertEqual(*reasons)
        self.assertUnchanged(self.image, data)

    @each(*product(('off',) + MODES, ('7E', '+7E', '16E')))
    def test_B28_resize_of_qcow2(self, mode, size):
        self.make(self.image, 'qcow2', 4 * MIB, data=MIB)
        result = run(patched.img('resize', '-f', 'qcow2',
                                 f'--preallocation={mode}', self.image, size))
        self.assertEqual(result.status, 1, result)
        self.assertContent(self.image, 'qcow2', 4 * MIB, data=MIB)


class TestHugeSizesOnExt4(HugeSizes, TargetCase):
    target = 'ext4'


class TestHugeSizesOnExt3(HugeSizes, TargetCase):
    target = 'ext3'


if __name__ == '__main__':
    main()
