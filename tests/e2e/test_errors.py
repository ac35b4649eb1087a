#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the user is told when preallocation fails, and what is left then:
full disks, read-only targets, limits, sizes that no file can have, and
targets that are no regular files.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e import (MIB, MODES, BlockDeviceCase, TargetCase,  # noqa: E402
                 allocated, each, file_size_limit, main, make_image, patched,
                 run, stock, targets)

NO_SPACE = 'No space left on device'
TOO_LARGE = 'File too large'
CREATION_TOO_LARGE = "The image size is too large for file format 'raw'"


class FullDisk:
    """Tests on a small file system with 16 MiB left."""

    LEFT = 16 * MIB
    SIZE = 64 * MIB
    OLD = MIB + 512

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.fill(cls.t)

    @classmethod
    def fill(cls, target):
        # The directory keeps it from being removed as a file of a test.
        target.fill(cls.LEFT + cls.OLD)
        filler = target.dir / '.filler'
        directory = target.dir / 'full'
        directory.mkdir()
        filler.rename(directory / 'filler')

    def setUp(self):
        super().setUp()
        self.data = make_image(self.image, self.OLD)
        os.sync()
        self.free = self.t.free_bytes()

    def assertFreedAgain(self):
        os.sync()
        self.assertGreaterEqual(self.t.free_bytes(), self.free - MIB)

    @each(*MODES)
    def test_create_fails_and_leaves_an_empty_file(self, mode):
        new = self.t.dir / 'new'
        self.fails(patched.create(mode, new, self.SIZE), new, NO_SPACE)
        self.assertUnchanged(new, b'')
        self.assertFreedAgain()

    @each(*MODES)
    def test_resize_fails_and_leaves_the_file_as_it_was(self, mode):
        blocks = allocated(self.image)
        self.fails(patched.resize(mode, self.image, self.SIZE), self.image,
                   NO_SPACE)
        self.assertUnchanged(self.image, self.data)
        # ext4's map of the file may have grown by a block, and stays so.
        self.assertLessEqual(allocated(self.image), blocks + 4096)
        self.assertFreedAgain()

    @each(*MODES)
    def test_direct_resize_fails_alike(self, mode):
        self.fails(patched.resize(mode, self.image, self.SIZE, direct=True),
                   self.image, NO_SPACE)
        self.assertUnchanged(self.image, self.data)
        self.assertFreedAgain()

    @each(*MODES)
    def test_what_fits_succeeds_after_a_failure(self, mode):
        self.fails(patched.resize(mode, self.image, self.SIZE))
        size = self.OLD + self.LEFT // 2
        self.succeeds(patched.resize(mode, self.image, size))
        self.assertAllocatedZeros(self.image, size, self.data)

    @each(*MODES)
    def test_convert_fails(self, mode):
        source = self.t.work / 'source'
        with open(source, 'wb') as file:
            file.truncate(self.SIZE)
        new = self.t.dir / 'new'
        self.fails(patched.convert(mode, source, new), new, NO_SPACE)

    def test_off_fails_for_nobody(self):
        self.succeeds(patched.resize('off', self.image, self.SIZE))
        self.assertEqual(os.stat(self.image).st_size, self.SIZE)


class TestFullExt4(FullDisk, TargetCase):
    target = 'ext4'
    options = {'size_mib': 80}


class TestFullExt3(FullDisk, TargetCase):
    target = 'ext3'
    options = {'size_mib': 80}


class TestFullXfs(FullDisk, TargetCase):
    target = 'xfs'


class TestFullBtrfs(FullDisk, TargetCase):
    target = 'btrfs'

    @classmethod
    def fill(cls, target):
        """What btrfs reports as free can be written only in part, and a
        file cut keeps its space: write files until none fits, remove some.
        """
        directory = target.dir / 'full'
        directory.mkdir()
        files = []
        try:
            while True:
                files.append(directory / str(len(files)))
                make_image(files[-1], MIB)
        except OSError:
            spare = (cls.LEFT + cls.OLD) // MIB + 1
            for file in files[-spare:]:
                file.unlink()
        os.sync()


class TestFullTmpfs(FullDisk, TargetCase):
    target = 'tmpfs'
    options = {'size_mib': 48}


class FileSizeLimit:
    """Tests with a limit of 8 MiB for the length of files."""

    LIMIT = 8 * MIB
    limited = {'preexec_fn': file_size_limit(LIMIT)}

    @each(*MODES)
    def test_create_fails_and_is_not_killed(self, mode):
        self.fails(patched.create(mode, self.image, 2 * self.LIMIT),
                   self.image, CREATION_TOO_LARGE, **self.limited)
        self.assertUnchanged(self.image, b'')

    @each(*MODES)
    def test_resize_fails_and_is_not_killed(self, mode):
        data = make_image(self.image, MIB + 512)
        self.fails(patched.resize(mode, self.image, 2 * self.LIMIT),
                   self.image, TOO_LARGE, **self.limited)
        self.assertUnchanged(self.image, data)

    @each(*MODES)
    def test_up_to_the_limit_it_works(self, mode):
        self.succeeds(patched.create(mode, self.image, self.LIMIT),
                      **self.limited)
        self.assertAllocatedZeros(self.image, self.LIMIT)

    @each('off', *MODES)
    def test_size_beyond_all_limits(self, mode):
        """QEMU takes it, but no file system has the space."""
        data = make_image(self.image, MIB)
        self.fails(patched.resize(mode, self.image, (1 << 63) - (1 << 30)),
                   TOO_LARGE, **self.limited)
        self.assertUnchanged(self.image, data)

    @each('off', *MODES)
    def test_size_that_no_image_has(self, mode):
        theirs = run(stock.create('off', self.image, '8E'))
        ours = run(patched.create(mode, self.image, '8E'))
        self.assertEqual((ours.status, ours.err), (1, theirs.err))


class TestLimitOnExt4(FileSizeLimit, TargetCase):
    target = 'ext4'
    options = {'size_mib': 64}


class TestLimitOnExt3(FileSizeLimit, TargetCase):
    target = 'ext3'
    options = {'size_mib': 64}


class TestLimitOnTmpfs(FileSizeLimit, TargetCase):
    target = 'tmpfs'


class TestLimitOnFuse(FileSizeLimit, TargetCase):
    target = 'fuse'


class TestPermissions(TargetCase):
    target = 'ext3'
    options = {'size_mib': 64}
    # root, but bound to the permissions of files
    BOUND = ['setpriv', '--bounding-set', '-dac_override,-dac_read_search',
             '--inh-caps', '-all']

    def setUp(self):
        super().setUp()
        self.data = make_image(self.image, MIB)

    def remount(self, how):
        targets.run('mount', '-o', f'remount,{how}', self.t.dir)

    @each(*MODES)
    def test_read_only_file_system(self, mode):
        self.remount('ro')
        self.addCleanup(self.remount, 'rw')
        new = self.t.dir / 'new'
        for command, name in (
                (patched.create(mode, new, MIB), new),
                (patched.resize(mode, self.image, 2 * MIB), self.image)):
            self.fails(command, name, 'Read-only file system')
        self.assertFalse(new.exists())
        self.assertUnchanged(self.image, self.data)

    @each(*MODES)
    def test_file_that_may_not_be_written(self, mode):
        os.chown(self.image, 1234, 1234)
        self.image.chmod(0o644)
        for command in (patched.create(mode, self.image, 2 * MIB),
                        patched.resize(mode, self.image, 2 * MIB)):
            self.fails(self.BOUND + command, self.image,
                       'Permission denied')
        self.assertUnchanged(self.image, self.data)

    @each(*MODES)
    def test_directory_that_may_not_be_written(self, mode):
        self.addCleanup(os.chown, self.t.dir, 0, 0)
        os.chown(self.t.dir, 1234, 1234)
        self.t.dir.chmod(0o755)
        new = self.t.dir / 'new'
        self.fails(self.BOUND + patched.create(mode, new, MIB), new,
                   'Permission denied')
        self.assertFalse(new.exists())

    @each(*MODES)
    def test_directory_that_is_not_there(self, mode):
        new = self.t.dir / 'missing' / 'image'
        self.fails(patched.create(mode, new, MIB), new,
                   'No such file or directory')


class TestUse(TargetCase):
    """Uses that were refused before, or that must be refused."""

    target = 'tmpfs'

    @each(*MODES)
    def test_shrinking(self, mode):
        data = make_image(self.image, 2 * MIB)
        self.fails(patched.img('resize', '-f', 'raw', '--shrink',
                               f'--preallocation={mode}', self.image, MIB),
                   'Preallocation can only be used for growing images')
        self.assertUnchanged(self.image, data)

    @each(*MODES)
    def test_shrinking_an_open_image(self, mode):
        data = make_image(self.image, 2 * MIB)
        result = run(patched.io('-f', 'raw', '-c', f'truncate -m {mode} 1M',
                                self.image))
        self.assertIn('Cannot use preallocation for shrinking files',
                      result.out + result.err)
        self.assertUnchanged(self.image, data)

    @each('create', 'resize')
    def test_unknown_mode(self, command):
        make_image(self.image, MIB)
        self.fails(getattr(patched, command)('sometimes', self.image,
                                             2 * MIB), 'sometimes')

    @each('falloc', 'full', 'auto')
    def test_help_lists_the_mode(self, mode):
        text = self.succeeds(patched.img('create', '-f', 'raw', '-o', 'help',
                                         self.image)).out
        line = next(line for line in text.splitlines()
                    if 'preallocation=' in line)
        self.assertRegex(line, rf'\b{mode}\b')

    def test_name_with_blanks_and_commas_is_reported_whole(self):
        image = self.t.dir / 'a b, "c" \u00e4'
        make_image(image, MIB)
        limit = file_size_limit(2 * MIB)
        self.fails(patched.resize('falloc', image, 8 * MIB), image,
                   TOO_LARGE, preexec_fn=limit)


class TestBlockDevice(BlockDeviceCase):
    """What is no regular file."""

    @each('falloc', 'full')
    def test_create_is_refused_as_before(self, mode):
        theirs = run(stock.create(mode, self.device, self.SIZE))
        ours = run(patched.create(mode, self.device, self.SIZE))
        self.assertEqual(ours, theirs)
        self.assertEqual(ours.status, 1)
        self.assertUntouched()

    def test_create_auto_is_refused_like_falloc(self):
        theirs = run(stock.create('falloc', self.device, self.SIZE))
        self.fails(patched.create('auto', self.device, self.SIZE),
                   theirs.err.replace('falloc', 'auto').strip())
        self.assertUntouched()

    @each('falloc', 'full')
    def test_resize_is_refused_as_before(self, mode):
        theirs = run(stock.resize(mode, self.device, 2 * self.SIZE))
        ours = run(patched.resize(mode, self.device, 2 * self.SIZE))
        self.assertEqual(ours, theirs)
        self.assertEqual(ours.status, 1)
        self.assertUntouched()

    def test_resize_auto_is_refused_like_falloc(self):
        theirs = run(stock.resize('falloc', self.device, 2 * self.SIZE))
        self.fails(patched.resize('auto', self.device, 2 * self.SIZE),
                   theirs.err.replace('falloc', 'auto').strip())
        self.assertUntouched()


if __name__ == '__main__':
    main()
