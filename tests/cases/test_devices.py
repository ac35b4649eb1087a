#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases of targets that are no regular files: they cannot be preallocated,
and whoever asks for it is told so.
"""
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (FORMATS, ImageChecks, both,  # noqa: E402
                   known_to_stock, product)
from e2e import (MIB, MODES, BlockDeviceCase, TargetCase,  # noqa: E402
                 each, main, make_image, patched, run, stock)
from storage_daemon import StorageDaemon  # noqa: E402

UNSUPPORTED = "Unsupported preallocation mode '{}'"
NON_REGULAR = "Preallocation mode '{}' unsupported for this non-regular file"


class TestBlockDevice(ImageChecks, BlockDeviceCase):
    """A loop device."""

    def setUp(self):
        super().setUp()
        self.source = self.t.dir / 'source'
        make_image(self.source, 4 * MIB)

    def convert_fails(self, mode, fmt='raw', flags=()):
        self.fails_alike(mode, fmt, *(
            command[:2] + list(flags) + command[2:] for command in
            both('convert', mode, self.source, self.device, fmt)))

    def fails_alike(self, mode, fmt, *commands):
        """Stock's command and ours say the same and leave the same."""
        results, contents = [], []
        for command in commands:
            results.append(run(command))
            os.sync()
            contents.append(self.backing.read_bytes())
            self.backing.write_bytes(self.data)
        theirs, ours = results
        self.assertEqual(ours.status, 1, ours)
        self.assertSameAsStock(mode, theirs, ours)
        self.assertTrue(contents[0] == contents[1], 'another content left')
        if fmt == 'raw':
            self.assertIn(UNSUPPORTED.format(mode), ours.err)
            self.assertTrue(contents[1] == self.data, 'not untouched')
        else:
            self.assertIn(NON_REGULAR.format(mode), ours.err)

    @each(*FORMATS)
    def test_B05_convert_falloc(self, fmt):
        """Tools look for stock's text to try another mode."""
        self.convert_fails('falloc', fmt)

    @each(*FORMATS)
    def test_B05_convert_auto(self, fmt):
        """The mode that they need not try others after."""
        self.succeeds(patched.convert('auto', self.source, self.device, fmt))
        os.sync()
        if fmt == 'raw':
            size = self.source.stat().st_size
            self.assertTrue(self.backing.read_bytes()[:size] ==
                            self.source.read_bytes())
        else:
            self.succeeds(patched.img('compare', '-f', 'raw', '-F', fmt,
                                      self.source, self.device))

    @each(*product(('off', 'auto'), ('', '-t none'), (2 * MIB, MIB + 512)))
    def test_B47_convert_writes_only_the_image(self, mode, flags, size):
        """A device is larger than the image; the rest is not ours."""
        data = make_image(self.source, size)
        self.succeeds(patched.img(
            'convert', '-f', 'raw', '-O', 'raw', *flags.split(),
            *(('-o', 'preallocation=auto') if mode == 'auto' else ()),
            self.source, self.device))
        os.sync()
        content = self.backing.read_bytes()
        self.assertTrue(content[:size] == data)
        # A device is written in whole blocks.
        end = -(-size // 4096) * 4096
        self.assertTrue(content[end:] == self.data[end:], 'written beyond')

    @each(*FORMATS)
    def test_B06_convert_full(self, fmt):
        """A clear error, and the device as it was."""
        self.convert_fails('full', fmt)

    @each(*product(('falloc', 'full'), ('-t none', '-p', '-t none -p')))
    def test_B06_convert_with_flags(self, mode, flags):
        self.convert_fails(mode, flags=flags.split())

    @each(*product(MODES, FORMATS, (4 * MIB, 8 * MIB, 16 * MIB)))
    def test_B46_create(self, mode, fmt, size):
        """It said that it had preallocated, and had done nothing."""
        self.fails_alike(mode, fmt, *both('create', mode, self.device, size,
                                          fmt))

    @each(*product(MODES, (8 * MIB + 512, 16 * MIB, '+1M', '1G')))
    def test_B46_resize(self, mode, size):
        theirs, ours = (run(qemu.img('resize', '-f', 'raw',
                                     f'--preallocation={m}', self.device,
                                     size))
                        for qemu, m in ((stock, known_to_stock(mode)),
                                        (patched, mode)))
        self.assertEqual(ours.status, 1)
        self.assertSameAsStock(mode, theirs, ours)
        self.assertIn(NON_REGULAR.format(mode), ours.err)
        self.assertUntouched()

    @each(*MODES)
    def test_B46_resize_of_qcow2_on_the_device(self, mode):
        """Its data would have to be allocated by the device."""
        self.succeeds(stock.img('create', '-f', 'qcow2', self.device,
                                4 * MIB))
        theirs, ours = (run(qemu.img('resize', '-f', 'qcow2',
                                     f'--preallocation={m}', self.device,
                                     6 * MIB))
                        for qemu, m in ((stock, known_to_stock(mode)),
                                        (patched, mode)))
        self.assertEqual(ours.status, 1)
        self.assertSameAsStock(mode, theirs, ours)
        self.assertContent(self.device, 'qcow2', 4 * MIB)

    @each('create', 'resize', 'convert')
    def test_B46_off_is_as_in_stock(self, command):
        words = {'create': ('create', '-f', 'raw', self.device, 4 * MIB),
                 'resize': ('resize', '-f', 'raw', self.device, 16 * MIB),
                 'convert': ('convert', '-O', 'raw', self.source,
                             self.device)}[command]
        left = []
        for qemu in (stock, patched):
            result = run(qemu.img(*words))
            os.sync()
            left.append((result, self.backing.read_bytes()))
            self.backing.write_bytes(self.data)
        self.assertTrue(left[0] == left[1], (left[0][0], left[1][0]))


class TestNbd(ImageChecks, TargetCase):
    """A network block device."""

    target = 'tmpfs'
    SIZE = 8 * MIB

    def setUp(self):
        super().setUp()
        self.data = make_image(self.image, self.SIZE)
        socket = self.t.work / 'nbd'
        daemon = StorageDaemon(
            '--blockdev', f'driver=file,node-name=file,filename={self.image}',
            '--nbd-server', f'addr.type=unix,addr.path={socket}',
            '--export', 'type=nbd,id=export,node-name=file,name=x,'
            'writable=on')
        self.addCleanup(daemon.__exit__, None, None, None)
        self.device = f'nbd+unix:///x?socket={socket}'

    @each(*product(MODES, FORMATS))
    def test_B46_create(self, mode, fmt):
        theirs, ours = map(run, both('create', mode, self.device, self.SIZE,
                                     fmt))
        self.assertEqual(ours.status, 1)
        self.assertSameAsStock(mode, theirs, ours)
        if fmt == 'raw':
            self.assertIn(UNSUPPORTED.format(mode), ours.err)
            self.assertUnchanged(self.image, self.data)
        else:
            self.assertIn('Cannot grow NBD nodes', ours.err)

    @each(*MODES)
    def test_B46_resize(self, mode):
        theirs, ours = (run(qemu.img('resize', '-f', 'raw',
                                     f'--preallocation={m}', self.device,
                                     2 * self.SIZE))
                        for qemu, m in ((stock, known_to_stock(mode)),
                                        (patched, mode)))
        self.assertEqual(ours.status, 1)
        self.assertSameAsStock(mode, theirs, ours)
        self.assertUnchanged(self.image, self.data)

    def test_B05_convert_auto(self):
        source = self.t.dir / 'source'
        data = make_image(source, 4 * MIB)
        self.succeeds(patched.convert('auto', source, self.device))
        self.assertUnchanged(self.image, data + self.data[4 * MIB:])

    @each('falloc', 'full')
    def test_B05_convert(self, mode):
        source = self.t.dir / 'source'
        make_image(source, 4 * MIB)
        theirs, ours = map(run, both('convert', mode, source, self.device))
        self.assertEqual(ours, theirs)
        self.assertEqual(ours.status, 1)
        self.assertUnchanged(self.image, self.data)


if __name__ == '__main__':
    main()
