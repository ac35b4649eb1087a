#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""An image that is preallocated while it is written to: no request may
fail, and no byte of either may be lost.

The records are 100 bytes long: no open file description with O_DIRECT
takes those, so they fail if preallocation sets this flag for others.
"""
import os
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e import (MIB, MODES, NO_CPU_TIME, FuseCase,  # noqa: E402
                 InteractiveIo, TargetCase, each, file_options, main,
                 make_image, patched, run, targets)
from storage_daemon import StorageDaemon, fuse_export  # noqa: E402

RECORD = 100
OPENED = [(direct, aio) for direct in (False, True)
          for aio in ('threads', 'io_uring')] + [(True, 'native')]


class Records:
    """What is written to the old part of an image, record by record."""

    def __init__(self, data, start=0):
        self.expected = bytearray(data)
        self.places = (len(data) - start) // RECORD
        self.start = start
        self.written = 0

    def next(self):
        """The offset and the byte of the next record, all over the image."""
        number = self.written
        self.written += 1
        offset = self.start + number * 7919 % self.places * RECORD
        byte = number % 251 + 1
        self.expected[offset:offset + RECORD] = bytes([byte]) * RECORD
        return offset, byte


class UnderIo:
    """Tests on a target whose resize takes a while."""

    SIZE = 128 * MIB
    DIRECT_UNIT = 512           # what the length must be a multiple of

    def make_image(self, direct):
        size = MIB + (self.DIRECT_UNIT if direct else 512)
        self.records = Records(make_image(self.image, size))

    def assertDone(self):
        self.assertAllocatedZeros(self.image, self.SIZE,
                                  bytes(self.records.expected))

    @each(*[(mode, direct, aio) for mode in MODES for direct, aio in OPENED])
    def test_writes_in_flight_in_the_process_that_resizes(self, mode, direct,
                                                          aio):
        self.make_image(direct)
        commands = []
        for number in range(400):
            if number == 200:
                commands.append(f'truncate -m {mode} {self.SIZE}')
            offset, byte = self.records.next()
            commands.append(f'aio_write -P {byte} {offset} {RECORD}')
        words = [word for c in commands for word in ('-c', c)]
        result = run(patched.io(
            '--image-opts', *words, '-c', 'aio_flush',
            file_options(self.image, direct=direct, aio=aio)))
        self.assertEqual((result.status, result.err), (0, ''))
        self.assertEqual(result.out.count(f'wrote {RECORD}/{RECORD} bytes'),
                         400, result.out)
        self.assertDone()

    @each(*[(mode, direct) for mode in MODES for direct in (False, True)])
    def test_writes_of_another_process(self, mode, direct):
        self.make_image(direct)
        resizing = subprocess.Popen(
            ['sh', '-c', 'read go && exec "$@"', 'sh'] +
            [str(w) for w in patched.resize(mode, self.image, self.SIZE,
                                            direct=direct)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        with InteractiveIo(patched.io('--image-opts', file_options(
                self.image, direct=direct))) as guest:
            resizing.stdin.write(b'go\n')
            resizing.stdin.flush()
            while resizing.poll() is None:
                offset, byte = self.records.next()
                answer = guest.do(f'write -P {byte} {offset} {RECORD}')
                self.assertIn(f'wrote {RECORD}/{RECORD} bytes', answer)
        output, _ = resizing.communicate()
        self.assertEqual(resizing.returncode, 0, output)
        self.assertGreater(self.records.written, 3)
        self.assertDone()


class TestOnFuse(UnderIo, FuseCase):
    options = {'latency_us': 1000}
    DIRECT_UNIT = 4096


class TestOnExt3(UnderIo, TargetCase):
    target = 'ext3'


def daemon_with_export(image, export, direct):
    """A daemon with the node "file" for the image, exported."""
    return StorageDaemon(
        '--object', 'secret,id=secret,data=passphrase',
        '--blockdev', f'driver=file,node-name=file,filename={image},'
        f'cache.direct={"on" if direct else "off"}',
        *fuse_export('file', export))


class TestOnSharedDescription(TargetCase):
    """The guest and the preallocation use one open file description.

    The file becomes a LUKS image for that, as jobs can preallocate only
    what they create, and this format does so while others write. Behind
    its header it leaves alone what is there; that is where the guest
    writes.
    """

    target = 'ext3'
    HEADER = 3 * MIB            # and more
    OLD = 4 * MIB + 512
    SIZE = 128 * MIB

    def write_records(self, export):
        fd = os.open(export, os.O_RDWR)
        try:
            while not self.created.is_set():
                offset, byte = self.records.next()
                os.pwrite(fd, bytes([byte]) * RECORD, offset)
        except OSError as error:
            self.guest_error = error
        finally:
            os.close(fd)

    @each(*[(mode, direct) for mode in MODES for direct in (False, True)])
    def test_guest_does_not_notice(self, mode, direct):
        self.records = Records(make_image(self.image, self.OLD),
                               self.HEADER)
        self.created = threading.Event()
        self.guest_error = None
        export = self.t.work / f'export-{mode}-{direct}'
        with daemon_with_export(self.image, export, direct) as daemon:
            guest = threading.Thread(target=self.write_records,
                                     args=(export,))
            guest.start()
            try:
                # It may fail before it comes to the preallocation.
                while self.image.stat().st_size == self.OLD:
                    error = daemon.run_job('blockdev-create', options={
                        'driver': 'luks', 'file': 'file', 'size': self.SIZE,
                        'preallocation': mode, 'key-secret': 'secret',
                        'iter-time': 10})
                    self.assertIn(error, (None, NO_CPU_TIME))
            finally:
                self.created.set()
                guest.join()
        self.assertIsNone(self.guest_error)
        self.assertGreater(self.records.written, 10)
        self.assertGreaterEqual(targets.allocated(self.image), self.SIZE)
        with open(self.image, 'rb') as file:
            file.seek(self.HEADER)
            self.assertTrue(file.read(self.OLD - self.HEADER) ==
                            self.records.expected[self.HEADER:],
                            'a record is lost')
        self.assertZeros(self.image, self.OLD, self.SIZE)


if __name__ == '__main__':
    main()
