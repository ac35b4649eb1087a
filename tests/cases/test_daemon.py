#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases of programs that do something else while they preallocate, and of
other programs that use the image.
"""
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (CHUNK, DEPTH, ImageChecks,  # noqa: E402
                   known_to_stock, product)
from e2e import (MIB, MODES, NO_CPU_TIME, FuseCase,  # noqa: E402
                 InteractiveIo, TargetCase, allocated, each, file_options,
                 locks_of, main, make_image, patched, run, stock)
from storage_daemon import StorageDaemon, fuse_export  # noqa: E402
from syscalls import WRITES, strace_calls  # noqa: E402

SECRET = ('--object', 'secret,id=secret,data=passphrase')


def create(daemon, options, **more):
    """Run blockdev-create; returns its error, or None."""
    for _ in range(20):
        error = daemon.run_job('blockdev-create', options=options, **more)
        if error != NO_CPU_TIME:
            break
    return error


class TestMonitor(FuseCase):
    """Jobs on a target where each write takes 100 ms."""

    SIZE = 256 * MIB
    ANSWERS = 20                # before the job ends, at least

    def job(self, driver, mode):
        """blockdev-create's options, and what the daemon has open."""
        options = {'driver': driver, 'size': self.SIZE,
                   'preallocation': mode}
        if driver == 'file':
            return {**options, 'filename': str(self.image)}, ()
        self.image.touch()
        options['file'] = 'file'
        if driver == 'luks':
            options.update({'key-secret': 'secret', 'iter-time': 10})
        return options, ('--blockdev', 'driver=file,node-name=file,'
                         f'filename={self.image}')

    def ask(self, daemon):
        time.sleep(0.05)
        self.assertIn('qemu', daemon.execute('query-version'))
        # WRITEs that arrived: at most what is in flight has not ended.
        self.written.append(self.t.stats()['write_bytes'])

    @each(*product(MODES, ('file', 'qcow2', 'luks')))
    def test_B18_monitor_answers_during_the_job(self, mode, driver):
        """A program stood still until all was written."""
        options, words = self.job(driver, mode)
        self.written = [0]
        with StorageDaemon(*SECRET, *words) as daemon:
            self.t.reset()
            self.t.control(latency_us=100000)
            error = create(daemon, options,
                           meanwhile=lambda: self.ask(daemon))
        self.assertIsNone(error)
        self.assertGreaterEqual(len(self.written) - 1, self.ANSWERS)
        steps = [b - a for a, b in zip(self.written, self.written[1:])]
        self.assertLessEqual(max(steps), 2 * DEPTH * CHUNK)
        self.assertGreaterEqual(self.written[-1], self.SIZE // 2)
        self.assertGreaterEqual(allocated(self.image), self.SIZE)

    def test_B18_block_resize_takes_no_mode(self):
        """It would be a way to stop a guest that is running."""
        with StorageDaemon() as daemon:
            schema = {entry['name']: entry for entry in
                      daemon.execute('query-qmp-schema')}
        arguments = schema[schema['block_resize']['arg-type']]['members']
        self.assertEqual({a['name'] for a in arguments},
                         {'device', 'node-name', 'size'})


class Export(ImageChecks):
    """fallocate(2) on an export of the storage daemon."""

    OLD = MIB

    def blockdevs(self, layers):
        words = ['--blockdev',
                 f'driver=file,node-name=file,filename={self.image}']
        if layers != 'file':
            words += ['--blockdev',
                      f'driver={layers},node-name=top,file=file']
        return words

    def ask(self, layers, size):
        """Answer to fallocate(2) from the export's end up to SIZE."""
        export = self.t.work / f'export-{self.id().replace("/", "_")}'
        node = 'file' if layers == 'file' else 'top'
        with StorageDaemon(*self.blockdevs(layers),
                           *fuse_export(node, export, 'growable=on')):
            calls = strace_calls(['fallocate', '--offset', self.OLD,
                                  '--length', size - self.OLD, export],
                                 status=None)
            length = export.stat().st_size
        answers = [c.error for c in calls if c.name == 'fallocate']
        self.assertEqual(len(answers), 1)
        self.assertEqual([c for c in calls if c.name in WRITES and
                          c.path == str(export)], [])
        return answers[0], length


class TestExportWithoutFallocate(Export, FuseCase):
    @each('file', 'raw')
    def test_B18_fallocate_is_refused_and_nothing_written(self, layers):
        """It would write zeros, and block the monitor meanwhile."""
        data = self.existing_image(self.OLD)
        self.assertEqual(self.ask(layers, 64 * MIB),
                         ('EOPNOTSUPP', self.OLD))
        self.assertStats(write=0)
        self.assertUnchanged(self.image, data)

    def test_B18_fallocate_of_qcow2_is_refused(self):
        self.make(self.image, 'qcow2', self.OLD, data=self.OLD)
        self.t.reset()
        self.assertEqual(self.ask('qcow2', 64 * MIB),
                         ('EOPNOTSUPP', self.OLD))
        self.assertLess(self.t.stats()['write_bytes'], MIB)
        self.assertContent(self.image, 'qcow2', self.OLD, data=self.OLD)


class TestExportOnExt4(Export, TargetCase):
    target = 'ext4'

    @each('file', 'raw')
    def test_B18_fallocate_works_as_before(self, layers):
        data = make_image(self.image, self.OLD)
        self.assertEqual(self.ask(layers, 32 * MIB), (None, 32 * MIB))
        self.assertAllocatedZeros(self.image, 32 * MIB, data)

    def test_B18_fallocate_of_qcow2_works_as_before(self):
        self.make(self.image, 'qcow2', self.OLD, data=self.OLD)
        self.assertEqual(self.ask('qcow2', 32 * MIB), (None, 32 * MIB))
        self.assertAllocated(self.image, 'qcow2', 32 * MIB, data=self.OLD)


class Locking(ImageChecks):
    """A second program opens the image of the first."""

    SIZE = 16 * MIB

    def second(self):
        """What a second program is told that reads or writes the image."""
        results = [run(command) for command in (
            stock.img('info', '-f', 'qcow2', self.image),
            stock.img('info', '-f', 'qcow2', '-U', self.image),
            stock.img('check', '-f', 'qcow2', self.image),
            stock.img('resize', '-f', 'qcow2', self.image, '+0'),
            stock.io('-r', '-f', 'qcow2', '-c', 'read 0 512', self.image))]
        return [(result.status, result.err) for result in results]

    def during(self, qemu, mode, locking):
        """What the second is told before and after the first's resize."""
        self.image.unlink(missing_ok=True)
        self.make(self.image, 'qcow2', MIB)
        with InteractiveIo(qemu.io('--image-opts', file_options(
                self.image, locking=locking, fmt='qcow2'))) as first:
            before = self.second()
            self.assertEqual(first.do(f'truncate -m {mode} {self.SIZE}'), '')
            after = self.second()
        return before, after, self.second()

    @each(*product(MODES, ('on', 'off')))
    def test_B49_second_program_after_a_resize(self, mode, locking):
        """Programs lost their locks, or could no longer open the image."""
        theirs = self.during(stock, known_to_stock(mode), locking)
        ours = self.during(patched, mode, locking)
        self.assertEqual(ours, theirs)
        locked = [status for status, _ in ours[1]]
        self.assertEqual(1 in locked, locking == 'on')
        self.assertEqual(ours[0], ours[1])

    def job_options(self, mode):
        return {'driver': 'luks', 'file': 'file', 'size': self.SIZE,
                'preallocation': mode, 'key-secret': 'secret',
                'iter-time': 10}

    @each(*product(MODES, ('on', 'off')))
    def test_B49_locks_of_an_open_node_after_a_creation(self, mode, locking):
        make_image(self.image, 512)
        export = self.t.work / f'export-{mode}-{locking}'
        with StorageDaemon(
                *SECRET, '--blockdev', 'driver=file,node-name=file,'
                f'locking={locking},filename={self.image}',
                *fuse_export('file', export)) as daemon:
            before = locks_of(self.image)
            self.assertIsNone(create(daemon, self.job_options(mode)))
            self.assertEqual(locks_of(self.image), before)
        self.assertEqual(bool(before), locking == 'on')

    @each(*MODES)
    def test_B49_image_is_free_after_qemu_img(self, mode):
        free = []
        for qemu, m in ((stock, known_to_stock(mode)), (patched, mode)):
            self.image.unlink(missing_ok=True)
            for command in (qemu.create(m, self.image, MIB, 'qcow2'),
                            qemu.resize(m, self.image, self.SIZE,
                                        fmt='qcow2')):
                self.succeeds(command)
                free.append(self.second())
        self.assertEqual(free.count(free[0]), 4)
        self.assertNotIn('lock', str(free))


class TestLockingOnExt3(Locking, TargetCase):
    target = 'ext3'


class TestLockingOnExt4(Locking, TargetCase):
    target = 'ext4'


class TestLockingOnFuse(Locking, FuseCase):
    pass


if __name__ == '__main__':
    main()
