#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases of qemu-img convert."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (FORMATS, ImageChecks, bytes_written,  # noqa: E402
                   product)
from e2e import (MIB, MODES, BlockDeviceCase, FuseCase,  # noqa: E402
                 TargetCase, allocated, each, main, make_image, patched)

SIZE = 64 * MIB
DATA = 24 * MIB
METADATA = 4 * MIB          # of a qcow2 image of that size, at most


class Converting(ImageChecks):
    """Tests on one target."""

    NATIVE = False

    def setUp(self):
        super().setUp()
        self.source = self.mount('tmpfs').dir / 'source'
        make_image(self.source, DATA)
        with open(self.source, 'r+b') as file:
            file.truncate(SIZE)

    def assertConverted(self, fmt):
        self.succeeds(patched.img('compare', '-f', 'raw', '-F', fmt,
                                  self.source, self.image))
        self.assertGreaterEqual(allocated(self.image), SIZE)

    @each(*product(MODES, FORMATS))
    def test_B40_no_byte_is_written_twice(self, mode, fmt):
        """Space was made by writing zeros, and the data written over it."""
        calls = self.calls_of(patched.convert(mode, self.source, self.image,
                                              fmt))
        # The first block finds out the alignment of direct I/O.
        extra = METADATA if fmt == 'qcow2' else 4096
        once = DATA if self.NATIVE and mode != 'full' else SIZE
        self.assertLessEqual(bytes_written(self.image, calls), once + extra)
        self.assertConverted(fmt)

    def test_B07_as_an_importer_says_it(self):
        """It tried falloc, full and -S 0 in turn."""
        self.succeeds(patched.img(
            'convert', '-o', 'preallocation=auto', '-t', 'none', '-p', '-O',
            'raw', self.source, self.image))
        self.assertConverted('raw')


class TestOnFuse(Converting, FuseCase):
    pass


class TestOnExt3(Converting, TargetCase):
    target = 'ext3'


class TestOnExt4(Converting, TargetCase):
    target = 'ext4'
    NATIVE = True


class TestOnXfs(Converting, TargetCase):
    target = 'xfs'
    NATIVE = True


class TestOnBtrfs(Converting, TargetCase):
    target = 'btrfs'
    NATIVE = True


class TestOnBlockDevice(BlockDeviceCase):
    def test_B07_as_an_importer_says_it(self):
        source = self.t.dir / 'source'
        data = make_image(source, 4 * MIB)
        self.succeeds(patched.img(
            'convert', '-o', 'preallocation=auto', '-t', 'none', '-p', '-O',
            'raw', source, self.device))
        with open(self.device, 'rb') as device:
            self.assertTrue(device.read(len(data)) == data)


if __name__ == '__main__':
    main()
