#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases where the target has fallocate(2), or half of it, and cases of
commands that do not ask for preallocation.
"""
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (FORMATS, ImageChecks, events_of,  # noqa: E402
                   product, writes_on)
from e2e import (MIB, MODES, WRITE_ZEROES, FuseCase,  # noqa: E402
                 TargetCase, allocated, changes, each, fallocates,
                 file_options, main, make_image, offset_of, patched, stock,
                 targets, traced)

SIZE = 32 * MIB
OLD = MIB + 512
MODE_0 = targets.BUILD.resolve() / 'tests' / 'cases' / 'mode-0.so'


def with_mode_0(answer, command):
    """The command, where fallocate(2) answers so in mode 0."""
    if not MODE_0.exists():
        raise AssertionError(f'{MODE_0}: not built; run: ninja -C build')
    return ['env', f'LD_PRELOAD={MODE_0}', f'MODE_0={answer}', *command]


class Half(ImageChecks):
    """Tests where mode 0 of fallocate(2) is not what it should be."""

    def command(self, mode, fmt, command):
        if command == 'create':
            return patched.create(mode, self.image, SIZE, fmt), 0
        self.make(self.image, fmt, 8 * MIB, data=MIB)
        return patched.resize(mode, self.image, SIZE, fmt=fmt), MIB

    @each(*product(MODES, FORMATS, ('create', 'resize')))
    def test_B27_target_that_reserves_nothing(self, mode, fmt, command):
        """fallocate(2) succeeds, and the file occupies no block."""
        words, data = self.command(mode, fmt, command)
        calls = self.calls_of(with_mode_0('length', words))
        self.assertContent(self.image, fmt, SIZE, data=data)
        if mode == 'full':
            return
        # It was told to be done, and must not write all the same.
        written = sum(w.result for w in writes_on(self.image, calls))
        self.assertLess(written, MIB)

    @each(*product(('falloc', 'auto'), FORMATS, ('create', 'resize')))
    def test_B31_only_mode_0_is_refused(self, mode, fmt, command):
        """Holes can be punched there, but no space reserved."""
        words, data = self.command(mode, fmt, command)
        calls = self.calls_of(with_mode_0('refused', words))
        other = {f[0] for f in fallocates(self.image, calls)}
        self.assertLessEqual(other, {WRITE_ZEROES} if mode == 'auto'
                             else set())
        self.assertContent(self.image, fmt, SIZE, data=data)
        self.assertGreaterEqual(allocated(self.image), SIZE - 8 * MIB)
        written = sum(w.result for w in writes_on(self.image, calls))
        self.assertGreaterEqual(written, SIZE - 8 * MIB)
        self.assertNotIn(1, [w.result for w in writes_on(self.image, calls)])

    @each('falloc', 'auto')
    def test_B31_the_methods_in_their_order(self, mode):
        result = self.succeeds(with_mode_0('refused', traced(
            patched.create(mode, self.image, SIZE))))
        names = [name for name, _ in events_of(result).events
                 if name in ('refused', 'writer', 'done')]
        refused = {'falloc': 1, 'auto': 2}[mode]
        self.assertEqual(names, refused * ['refused'] + ['writer', 'done'])


class TestHalfOnExt4(Half, TargetCase):
    target = 'ext4'


class TestHalfOnXfs(Half, TargetCase):
    target = 'xfs'


class Native(ImageChecks):
    """Tests on targets with fallocate(2)."""

    @each(*product(FORMATS, ('create', 'resize')))
    def test_B32_falloc_is_mode_0(self, fmt, command):
        """Other flags are refused where mode 0 works."""
        old = 0
        if command == 'create':
            words = patched.create('falloc', self.image, SIZE, fmt)
        else:
            self.make(self.image, fmt, 8 * MIB, data=MIB)
            old = self.image.stat().st_size
            words = patched.resize('falloc', self.image, SIZE, fmt=fmt)
        asked = fallocates(self.image, self.calls_of(words))
        self.assertEqual([(f[0], f[3]) for f in asked], [('0', None)])
        _, offset, length, _ = asked[0]
        self.assertEqual(offset + length, self.image.stat().st_size)
        if fmt == 'raw':
            self.assertEqual((offset, length), (old, SIZE - old))
        else:
            self.assertGreaterEqual(offset, old)

    @each(*product(('off', 'falloc', 'auto'), (False, True)))
    def test_B36_first_block_is_written(self, mode, existing):
        """Its alignment is probed by reading, and a hole tells nothing."""
        if existing:
            make_image(self.image, OLD)
        calls = self.calls_of(patched.create(mode, self.image, SIZE))
        self.assertEqual([(offset_of(w), w.result)
                          for w in writes_on(self.image, calls)],
                         [(0, 4096)])
        names = [c[0] for c in changes(self.image, calls)]
        self.assertTrue(names[-1].startswith('pwrite') or
                        names[-1] == 'write', names)
        self.succeeds(patched.io('-r', '--image-opts', '-c', 'read 512 512',
                                 file_options(self.image, direct=True)))


class Sparse(ImageChecks):
    """Commands without the option do what stock does."""

    COMMANDS = {
        'create': ('create', '-f', '{fmt}', '{new}', SIZE),
        'resize': ('resize', '-f', '{fmt}', '{image}', SIZE),
        'convert': ('convert', '-f', '{fmt}', '-O', '{fmt}', '{image}',
                    '{new}'),
        'convert to the other format': (
            'convert', '-f', '{fmt}', '-O', '{other}', '{image}', '{new}'),
        'convert -n': ('convert', '-n', '-f', '{fmt}', '-O', '{fmt}',
                       '{image}', '{made}'),
        'dd': ('dd', '-f', '{fmt}', '-O', '{fmt}', 'bs=1M', 'if={image}',
               'of={new}'),
    }

    def one(self, qemu, fmt, words):
        self._remove_files()
        names = {'image': self.image, 'new': self.t.dir / 'new',
                 'made': self.t.dir / 'made', 'fmt': fmt,
                 'other': 'qcow2' if fmt == 'raw' else 'raw'}
        self.make(self.image, fmt, 16 * MIB, data=MIB)
        self.succeeds(stock.img('create', '-f', fmt, names['made'], 16 * MIB))
        calls = self.calls_of(qemu.img(*[str(w).format(**names)
                                         for w in words]))
        done = {}
        for path in self.t.dir.iterdir():
            if path.is_file() and path.name != '.filler':
                done[path.name] = (sorted(map(str, changes(path, calls))),
                                   path.stat().st_size)
        targets.run('sync')
        blocks = {name: allocated(self.t.dir / name) for name in done}
        return done, blocks

    @each(*product(COMMANDS, FORMATS))
    def test_B38_command_is_as_in_stock(self, name, fmt):
        """Disks became full when images were no longer sparse."""
        theirs, their_blocks = self.one(stock, fmt, self.COMMANDS[name])
        ours, our_blocks = self.one(patched, fmt, self.COMMANDS[name])
        self.assertEqual(ours, theirs)
        for file, blocks in our_blocks.items():
            if name != 'dd':            # which writes all it reads
                self.assertLess(blocks, 4 * MIB, file)
            self.assertAlmostEqual(blocks, their_blocks[file], delta=65536)

    @each(*product(FORMATS, ('', '-n ')))
    def test_B38_opening_changes_nothing(self, fmt, cache):
        self.make(self.image, fmt, SIZE, data=MIB)
        before, blocks = self.image.read_bytes(), allocated(self.image)
        calls = self.calls_of(patched.io(*cache.split(), '-f', fmt, '-c',
                                         'read 0 1M', self.image))
        self.assertEqual(changes(self.image, calls), [])
        self.assertUnchanged(self.image, before)
        self.assertEqual(allocated(self.image), blocks)


class TestNativeOnExt4(Native, Sparse, TargetCase):
    target = 'ext4'


class TestNativeOnXfs(Native, TargetCase):
    target = 'xfs'


class TestNativeOnTmpfs(Native, TargetCase):
    target = 'tmpfs'


class TestSparseOnExt3(Sparse, TargetCase):
    target = 'ext3'


class TestBtrfs(Native, TargetCase):
    target = 'btrfs'

    @each(*product(MODES, FORMATS, ('on', 'off')))
    def test_B29_copy_on_write(self, mode, fmt, nocow):
        """What is reserved here is written elsewhere the second time."""
        self.succeeds(patched.img(
            'create', '-f', fmt, '-o', f'preallocation={mode},nocow={nocow}',
            self.image, SIZE))
        self.assertAllocated(self.image, fmt, SIZE)
        flags = subprocess.run(['lsattr', self.image], check=True, text=True,
                               stdout=subprocess.PIPE).stdout.split()[0]
        self.assertEqual('C' in flags, nocow == 'on')

    @each(*product(MODES, ('on', 'off')))
    def test_B29_resize(self, mode, nocow):
        self.succeeds(patched.img('create', '-f', 'raw', '-o',
                                  f'nocow={nocow}', self.image, MIB))
        self.succeeds(patched.io('-f', 'raw', '-c', 'write -P 7 0 1M',
                                 self.image))
        self.succeeds(patched.resize(mode, self.image, SIZE))
        self.assertAllocated(self.image, 'raw', SIZE, data=MIB)


class TestFirstBlockOnFuse(ImageChecks, FuseCase):
    @each(*product(('off',) + MODES, (False, True)))
    def test_B36_first_block_is_written(self, mode, existing):
        if existing:
            self.existing_image(OLD)
        self.succeeds(patched.create(mode, self.image, SIZE))
        self.assertStats(write_lowest_offset=0)
        self.assertGreaterEqual(allocated(self.image), 4096)
        self.assertEqual(os.stat(self.image).st_size, SIZE)


if __name__ == '__main__':
    main()
