#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases of options that do not go together, or with a format: who asks for
preallocation gets it or an error.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import FORMATS, ImageChecks, both, product  # noqa: E402
from e2e import (MIB, MODES, TargetCase, allocated, each,  # noqa: E402
                 main, make_image, patched, run, stock)

SIZE = 16 * MIB
BACKING = ('Backing file and preallocation can only be used at the same time '
           'if extended_l2 is on')
COMPRESSION = {
    'qcow2': 'Compression and preallocation not supported at the same time',
    'raw': 'Compression not supported for this file format',
}
GROWING = 'Preallocation can only be used for growing images'
IGNORING = ('vdi', 'vmdk', 'vhdx', 'vpc', 'qed', 'parallels')


class TestOptions(ImageChecks, TargetCase):
    target = 'ext4'

    def setUp(self):
        super().setUp()
        self.base = self.t.dir / 'base'
        self.succeeds(stock.img('create', '-f', 'raw', self.base, SIZE))
        self.succeeds(stock.io('-f', 'raw', '-c', 'write -P 7 0 1M',
                               self.base))

    def overlay(self, qemu, mode, extended_l2, *options):
        return qemu.img(
            'create', '-f', 'qcow2', '-b', self.base, '-F', 'raw', '-o',
            ','.join((f'preallocation={mode}', f'extended_l2={extended_l2}',
                      *options)), self.image)

    @each(*product(('metadata',) + MODES, ('backing', 'size')))
    def test_B43_backing_file_without_extended_l2(self, mode, option):
        """The same rule and text for every mode, and no file is left."""
        extra = [SIZE] if option == 'size' else []
        known = 'falloc' if mode == 'auto' else mode
        theirs = run(self.overlay(stock, known, 'off') + extra)
        self.assertFalse(self.image.exists())
        ours = self.fails(self.overlay(patched, mode, 'off') + extra,
                          BACKING)
        self.assertSameAsStock(mode, theirs, ours)
        self.assertFalse(self.image.exists())

    @each('metadata', *MODES)
    def test_B43_backing_file_with_extended_l2(self, mode):
        self.succeeds(self.overlay(patched, mode, 'on'))
        self.assertContent(self.image, 'qcow2', SIZE, data=MIB)
        if mode != 'metadata':
            self.assertGreaterEqual(allocated(self.image), SIZE)

    @each('metadata', *MODES)
    def test_B43_convert_with_a_backing_file(self, mode):
        """convert -B has the same rule."""
        words = ('convert', '-O', 'qcow2', '-B', self.base, '-F', 'raw', '-o')
        known = 'falloc' if mode == 'auto' else mode
        theirs = run(stock.img(*words, f'preallocation={known}', self.base,
                               self.image))
        ours = self.fails(patched.img(*words, f'preallocation={mode}',
                                      self.base, self.image), BACKING)
        self.assertSameAsStock(mode, theirs, ours)

    @each(*product(('metadata',) + MODES, FORMATS))
    def test_B44_compression(self, mode, fmt):
        words = ('convert', '-c', '-O', fmt, '-o')
        known = 'falloc' if mode == 'auto' else mode
        theirs = run(stock.img(*words, f'preallocation={known}', self.base,
                               self.image))
        ours = self.fails(patched.img(*words, f'preallocation={mode}',
                                      self.base, self.image),
                          COMPRESSION[fmt])
        self.assertSameAsStock(mode, theirs, ours)
        self.assertFalse(self.image.exists())

    @each(*product(('metadata',) + MODES, FORMATS,
                   (SIZE // 2, SIZE, '-1M')))
    def test_B45_shrinking(self, mode, fmt, size):
        """Whatever was meant, it was not to cut the image."""
        self.make(self.image, fmt, SIZE, data=MIB)
        before = self.image.read_bytes()
        known = 'falloc' if mode == 'auto' else mode
        theirs, ours = (run(qemu.img(
            'resize', '-f', fmt, '--shrink', f'--preallocation={m}',
            self.image, size))
            for qemu, m in ((stock, known), (patched, mode)))
        self.assertEqual(ours.status, 1)
        self.assertIn(GROWING, ours.err)
        self.assertSameAsStock(mode, theirs, ours)
        self.assertUnchanged(self.image, before)

    @each(*FORMATS)
    def test_B45_shrinking_without_the_option(self, fmt):
        self.make(self.image, fmt, SIZE, data=MIB)
        self.succeeds(patched.img('resize', '-f', fmt, '--shrink',
                                  self.image, SIZE // 2))
        self.assertContent(self.image, fmt, SIZE // 2, data=MIB)

    # ---- of the kind of B46: never success without space ----

    @each(*product(IGNORING, (False, True)))
    def test_B46_format_that_cannot_preallocate(self, fmt, existing):
        """Sparse images came out, and nobody was told."""
        data = make_image(self.image, MIB) if existing else None
        self.fails(patched.create('auto', self.image, SIZE, fmt),
                   f"Unsupported preallocation mode 'auto' for format '{fmt}'")
        if existing:
            self.assertUnchanged(self.image, data)
        else:
            self.assertFalse(self.image.exists())

    @each(*product(IGNORING, ('off', 'falloc', 'full')))
    def test_B46_format_that_cannot_preallocate_is_as_in_stock(self, fmt,
                                                               mode):
        runs = []
        for command in both('create', mode, self.image, SIZE, fmt):
            self.image.unlink(missing_ok=True)
            result = run(command)
            runs.append((result, self.image.exists() and
                         (self.image.stat().st_size,
                          allocated(self.image) // 65536)))
        self.assertEqual(*runs)

    @each(*product(IGNORING, ('falloc', 'full', 'auto')))
    def test_B46_resize_of_such_a_format_is_refused(self, fmt, mode):
        self.succeeds(stock.img('create', '-f', fmt, self.image, SIZE))
        before = self.image.read_bytes()
        self.fails(patched.img('resize', '-f', fmt,
                               f'--preallocation={mode}', self.image,
                               2 * SIZE))
        self.assertUnchanged(self.image, before)

    @each('off', 'metadata', *MODES)
    def test_B34_measure(self, mode):
        """The size that is asked for before the creation."""
        known = 'falloc' if mode == 'auto' else mode
        theirs, ours = (self.succeeds(qemu.img(
            'measure', '-O', 'qcow2', '-o', f'preallocation={m}', '--size',
            SIZE)).out for qemu, m in ((stock, known), (patched, mode)))
        self.assertEqual(ours, theirs)


if __name__ == '__main__':
    main()
