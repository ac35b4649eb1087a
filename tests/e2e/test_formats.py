#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the file layer does for everything above it: image formats, locks,
and the memory that preallocation takes from others.
"""
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e import (MIB, MODES, FuseCase,  # noqa: E402
                 InteractiveIo, TargetCase, allocated, each, locks_of, main,
                 make_image, patched, run, stock, targets)

LOCKED = 'Is another process using the image'
SECRET = 'secret,id=s,data=passphrase'
# Stock takes falloc and full there and leaves the image sparse.
IGNORING_FORMATS = ('vdi', 'vmdk', 'vhdx', 'vpc', 'qed', 'qcow', 'parallels')


def memory_peak(process):
    """The most memory that the running program has had, in bytes."""
    for line in Path(f'/proc/{process.pid}/status').read_text().splitlines():
        if line.startswith('VmHWM:'):
            return int(line.split()[1]) * 1024
    raise AssertionError(f'no VmHWM of process {process.pid}')


class TestQcow2WithoutFallocate(FuseCase):
    SIZE = 64 * MIB

    def assertSound(self, size):
        self.succeeds(patched.img('check', self.image))
        self.succeeds(patched.io('-r', '-c', f'read -P 0 0 {size}',
                                 self.image))
        self.assertGreaterEqual(allocated(self.image), size)

    def test_stock_falloc_writes_one_byte_per_4_kib(self):
        self.succeeds(stock.create('falloc', self.image, 8 * MIB, 'qcow2'))
        self.assertGreaterEqual(self.t.stats()['write_one_byte'],
                                8 * MIB // 4096)

    @each(*MODES)
    def test_create(self, mode):
        self.succeeds(patched.create(mode, self.image, self.SIZE, 'qcow2'))
        self.assertStats(write_one_byte=0)
        self.assertLess(self.t.stats()['write'], 150)
        self.assertSound(self.SIZE)

    @each(*MODES)
    def test_resize(self, mode):
        self.succeeds(patched.img('create', '-f', 'qcow2', self.image,
                                  8 * MIB))
        self.succeeds(patched.io('-c', 'write -P 7 0 1M', self.image))
        self.t.reset()
        self.succeeds(patched.resize(mode, self.image, self.SIZE,
                                     fmt='qcow2'))
        self.assertStats(write_one_byte=0)
        self.assertLess(self.t.stats()['write'], 150)
        self.succeeds(patched.img('check', self.image))
        self.succeeds(patched.io('-r', '-c', 'read -P 7 0 1M', '-c',
                                 f'read -P 0 1M {self.SIZE - MIB}',
                                 self.image))
        self.assertGreaterEqual(allocated(self.image), self.SIZE - 8 * MIB)

    @each(*MODES)
    def test_data_file(self, mode):
        data_file = self.t.dir / 'data'
        self.succeeds(patched.img(
            'create', '-f', 'qcow2', '-o', f'preallocation={mode},'
            f'data_file={data_file}', self.image, self.SIZE))
        self.assertStats(write_one_byte=0)
        self.succeeds(patched.img('check', self.image))
        self.assertAllocatedZeros(data_file, self.SIZE)

    @each(*MODES)
    def test_convert(self, mode):
        source = self.t.work / 'source'
        data = make_image(source, 8 * MIB)
        self.succeeds(patched.convert(mode, source, self.image, 'qcow2'))
        self.assertStats(write_one_byte=0)
        self.succeeds(patched.img('check', self.image))
        self.succeeds(patched.img('compare', '-f', 'raw', '-F', 'qcow2',
                                  source, self.image))
        self.assertGreaterEqual(allocated(self.image), len(data))

    @each(*MODES)
    def test_failed_resize_leaves_a_sound_image(self, mode):
        self.succeeds(patched.img('create', '-f', 'qcow2', self.image,
                                  8 * MIB))
        self.succeeds(patched.io('-c', 'write -P 7 0 1M', self.image))
        self.t.reset()
        self.t.control(quota=16 * MIB)
        self.fails(patched.resize(mode, self.image, self.SIZE, fmt='qcow2'),
                   'No space left on device')
        self.t.control(quota='none')
        self.succeeds(patched.img('check', self.image))
        self.succeeds(patched.io('-r', '-c', 'read -P 7 0 1M', '-c',
                                 'read -P 0 1M 7M', self.image))
        self.assertIn(f'"virtual-size": {8 * MIB}', self.succeeds(
            patched.img('info', '--output=json', self.image)).out)

    @each(*IGNORING_FORMATS)
    def test_auto_is_refused_by_formats_that_ignore_it(self, fmt):
        text = f"Unsupported preallocation mode 'auto' for format '{fmt}'"
        self.fails(patched.create('auto', self.image, self.SIZE, fmt), text)
        self.assertFalse(self.image.exists())
        data = make_image(self.image, MIB)
        self.fails(patched.create('auto', self.image, self.SIZE, fmt), text)
        self.assertUnchanged(self.image, data)

    @each(*[(fmt, mode) for fmt in IGNORING_FORMATS
            for mode in ('off', 'falloc', 'full')])
    def test_formats_that_ignore_it_are_left_as_they_are(self, fmt, mode):
        results = []
        for qemu in stock, patched:
            result = run(qemu.create(mode, self.image, self.SIZE, fmt))
            results.append((result, targets.allocated(self.image),
                            self.image.stat().st_size))
        self.assertEqual(*results)

    @each(*MODES)
    def test_luks(self, mode):
        self.succeeds(patched.img(
            'create', '-f', 'luks', '--object', SECRET, '-o',
            f'key-secret=s,iter-time=10,preallocation={mode}', self.image,
            16 * MIB))
        self.assertStats(write_one_byte=0)
        self.assertGreaterEqual(allocated(self.image), 16 * MIB)
        self.succeeds(patched.img(
            'info', '--object', SECRET, '--image-opts',
            f'driver=luks,key-secret=s,file.filename={self.image}'))


class TestLocks(FuseCase):
    """Opening the image a second time must not lose its locks."""

    def assertLocked(self):
        self.fails(patched.img('resize', self.image, '+1M'), LOCKED)
        self.fails(patched.img('info', self.image), LOCKED)
        self.succeeds(patched.img('info', '-U', self.image))

    def locks(self):
        return locks_of(self.image)

    def locks_after_resize(self, qemu, mode):
        make_image(self.image, MIB)
        with InteractiveIo(qemu.io('-f', 'raw', self.image)) as qemu_io:
            self.assertEqual(qemu_io.do(f'truncate -m {mode} 16M'), '')
            return self.locks()

    def wait_for_first_write(self, process):
        while self.t.stats()['write'] == 0:
            self.assertIsNone(process.poll(), 'ended without a write')
            time.sleep(0.01)

    @each(*MODES)
    def test_image_is_locked_during_the_resize(self, mode):
        self.succeeds(patched.img('create', '-f', 'qcow2', self.image, MIB))
        self.t.reset()
        self.t.control(latency_us=100000)
        resizing = subprocess.Popen(
            [str(word) for word in patched.resize(mode, self.image, '+64M',
                                                  fmt='qcow2')],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)
        self.addCleanup(resizing.stderr.close)
        self.addCleanup(resizing.wait)
        self.addCleanup(resizing.kill)
        self.wait_for_first_write(resizing)
        # Now it waits until the locks have been looked at.
        resizing.send_signal(signal.SIGSTOP)
        self.assertLocked()
        self.assertIsNone(resizing.poll(), 'ended too early to be tested')
        self.t.control(latency_us=0)
        resizing.send_signal(signal.SIGCONT)
        self.assertEqual((resizing.communicate()[1], resizing.returncode),
                         (b'', 0))

    @each(*MODES)
    def test_image_stays_locked_after_the_resize(self, mode):
        self.succeeds(patched.img('create', '-f', 'qcow2', self.image, MIB))
        with InteractiveIo(patched.io(self.image)) as qemu_io:
            self.assertLocked()
            self.assertEqual(qemu_io.do(f'truncate -m {mode} 16M'), '')
            self.assertLocked()
        self.succeeds(patched.img('resize', self.image, '+1M'))

    @each(*MODES)
    def test_every_lock_is_kept(self, mode):
        locks = self.locks_after_resize(patched, mode)
        self.assertTrue(locks)
        self.assertEqual(locks, self.locks_after_resize(stock, 'off'))
        self.assertEqual(self.locks(), [])

    @each(*MODES)
    def test_image_is_free_after_a_creation(self, mode):
        self.succeeds(patched.create(mode, self.image, 16 * MIB))
        self.assertEqual(self.locks(), [])


class SpareResources:
    """Tests of what preallocation takes from everything else that runs."""

    SIZE = 128 * MIB

    def test_page_cache_is_left_alone(self):
        self.succeeds(patched.create('full', self.image, self.SIZE))
        self.assertAllocated()
        self.assertLessEqual(targets.fincore(self.image), 16 * MIB)

    def test_stock_fills_the_page_cache(self):
        """Otherwise the test above could not fail."""
        self.succeeds(stock.create('full', self.image, self.SIZE))
        self.assertGreater(targets.fincore(self.image), 64 * MIB)

    def assertAllocated(self):
        self.assertGreaterEqual(allocated(self.image), self.SIZE)

    def peak(self, qemu):
        self.image.unlink(missing_ok=True)
        make_image(self.image, 512)
        with InteractiveIo(qemu.io('-f', 'raw', self.image)) as qemu_io:
            self.assertEqual(qemu_io.do(f'truncate -m full {self.SIZE}'), '')
            self.assertAllocated()
            return memory_peak(qemu_io.process)

    def test_memory_is_hardly_more_than_stock_takes(self):
        """A huge page, and only where the kernel has no shared one of zeros.

        The rest is program text, of which more or less is mapped each time.
        """
        self.assertLessEqual(self.peak(patched),
                             self.peak(stock) + 2 * MIB + MIB // 4)


class TestSpareResourcesOnExt4(SpareResources, TargetCase):
    target = 'ext4'


class TestSpareResourcesOnXfs(SpareResources, TargetCase):
    target = 'xfs'


if __name__ == '__main__':
    main()
