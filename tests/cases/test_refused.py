#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Cases where the target has no fallocate(2)."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import (CHUNK, DEPTH, FORMATS, ONE_AT_A_TIME,  # noqa: E402
                   ImageChecks, bytes_written, events_of, product, writes_on)
from e2e import (MIB, MODES, FuseCase, ImageCase, TargetCase,  # noqa: E402
                 allocated, each, fallocates, injected_calls, main,
                 make_image, offset_of, patched, run, stock, targets, traced)

SIZE = 32 * MIB
OLD = MIB + 512
SMALL = 65536               # no write but at the ends is shorter
METADATA_WRITES = 100       # of a qcow2 image of this size, at most


class Refusing(ImageChecks):
    """Tests on targets without fallocate(2)."""

    def few_writes(self, calls, fmt, size):
        """Bytes and number of writes are those of a zero writer."""
        writes = [w.result for w in writes_on(self.image, calls)]
        self.assertNotIn(1, writes)
        extra = METADATA_WRITES if fmt == 'qcow2' else 0
        self.assertLessEqual(len(writes), size // SMALL + extra)
        self.assertLessEqual(bytes_written(self.image, calls),
                             size + (4 * MIB if fmt == 'qcow2' else 0))

    @each(*MODES)
    def test_B01_create_is_no_write_per_block(self, mode):
        """An image on NFS took a request of one byte for every 4 KiB."""
        calls = self.calls_of(patched.create(mode, self.image, SIZE))
        self.few_writes(calls, 'raw', SIZE)
        self.assertWritesTile(self.image, calls, 0, SIZE)
        self.assertAllocated(self.image, 'raw', SIZE)

    @each(*MODES)
    def test_B01_resize_is_no_write_per_block(self, mode):
        data = make_image(self.image, OLD)
        calls = self.calls_of(patched.resize(mode, self.image, SIZE))
        self.few_writes(calls, 'raw', SIZE - OLD)
        self.assertWritesTile(self.image, calls, OLD, SIZE)
        self.assertAllocatedZeros(self.image, SIZE, data)

    @each(*MODES)
    def test_B02_qcow2_is_no_write_per_block(self, mode):
        calls = self.calls_of(patched.create(mode, self.image, SIZE,
                                             'qcow2'))
        self.few_writes(calls, 'qcow2', SIZE)
        self.assertAllocated(self.image, 'qcow2', SIZE)

    @each(*MODES)
    def test_B02_resize_of_qcow2_is_no_write_per_block(self, mode):
        self.make(self.image, 'qcow2', 8 * MIB, data=MIB)
        calls = self.calls_of(patched.resize(mode, self.image, SIZE,
                                             fmt='qcow2'))
        self.few_writes(calls, 'qcow2', SIZE)
        self.assertContent(self.image, 'qcow2', SIZE, data=MIB)
        self.assertGreaterEqual(allocated(self.image), SIZE - 8 * MIB)

    @each(*product(('create', 'resize'), ('falloc', 'auto')))
    def test_B02_qcow2_falloc_writes_no_more_often_than_full(self, command,
                                                             mode):
        counts = []
        for m in (mode, 'full'):
            self.image.unlink(missing_ok=True)
            if command == 'resize':
                self.make(self.image, 'qcow2', 8 * MIB)
                run_it = patched.resize(m, self.image, SIZE, fmt='qcow2')
            else:
                run_it = patched.create(m, self.image, SIZE, 'qcow2')
            counts.append(len(writes_on(self.image, self.calls_of(run_it))))
        self.assertLessEqual(*counts)

    @each(*product(MODES, FORMATS))
    def test_B09_resize_allocates_the_tail(self, mode, fmt):
        """A full image that was grown had a sparse tail."""
        half = SIZE // 2
        self.make(self.image, fmt, half, mode='full', data=half)
        self.succeeds(patched.img('resize', '-f', fmt,
                                  f'--preallocation={mode}', self.image,
                                  f'+{half}'))
        self.assertAllocated(self.image, fmt, SIZE, data=half)

    @each(*FORMATS)
    def test_B09_without_the_option_the_tail_is_sparse(self, fmt):
        half = SIZE // 2
        self.make(self.image, fmt, half, mode='full')
        self.succeeds(patched.img('resize', '-f', fmt, self.image,
                                  f'+{half}'))
        self.assertContent(self.image, fmt, SIZE)
        self.assertLess(allocated(self.image), half + 2 * MIB)

    @each(*product(MODES, (512, 4608, MIB, SIZE)))
    def test_B11_create_allocates_all(self, mode, size):
        """The installer ended: the mode is not supported here."""
        self.succeeds(patched.create(mode, self.image, size))
        self.assertAllocatedZeros(self.image, size)

    @each(*product(MODES, FORMATS))
    def test_B11_create_over_an_old_image(self, mode, fmt):
        make_image(self.image, SIZE // 2)
        self.succeeds(patched.create(mode, self.image, SIZE, fmt))
        self.assertAllocated(self.image, fmt, SIZE)

    def depth(self):
        return 1 if self.target in ONE_AT_A_TIME else DEPTH

    def assertInOrder(self, events, start, end):
        """Trace events of the writes: ascending, large, only the range."""
        writer, = events.named('writer')
        self.assertEqual((writer['write size'], writer['in flight']),
                         (CHUNK, self.depth()))
        at = start
        for write in events.named('write'):
            self.assertEqual(write['offset'], at)
            self.assertLessEqual(write['in flight'], self.depth())
            at += write['bytes']
        self.assertEqual(at, end)
        sizes = [write['bytes'] for write in events.named('write')]
        self.assertGreaterEqual(sizes.count(CHUNK),
                                (end - start) // CHUNK - 1)
        self.assertLessEqual(len(sizes), (end - start) // CHUNK + 4)

    def assertWithinWindow(self, calls):
        """No write begins before the end of one that is further behind it
        than what may be in flight."""
        writes = sorted(writes_on(self.image, calls), key=offset_of)
        window = self.depth() * CHUNK
        for late in writes:
            for early in writes:
                if offset_of(early) < offset_of(late) - window:
                    self.assertLessEqual(early.start + early.seconds,
                                         late.start + 2e-6)

    @each(*[(mode, *row) for mode in MODES for row in (
        (0, 0, False), (512, 512, False),
        (OLD, 0, True), (4 * MIB, 512, True))])
    def test_B13_writes_are_large_and_in_order(self, mode, start, extra,
                                               direct):
        """Files laid out by random offsets read slowly ever after."""
        end = start + 4 * CHUNK + extra
        data = make_image(self.image, start)
        result, calls = injected_calls(traced(patched.resize(
            mode, self.image, end, direct=direct)))
        self.assertEqual(result.status, 0, result)
        self.assertInOrder(events_of(result), start, end)
        self.assertWithinWindow(calls)
        self.assertWritesTile(self.image, calls, start, end)
        self.assertAllocatedZeros(self.image, end, data)

    @each(*MODES)
    def test_B13_create_writes_in_order(self, mode):
        size = 4 * CHUNK + 512
        result, calls = injected_calls(traced(patched.create(
            mode, self.image, size)))
        self.assertEqual(result.status, 0, result)
        self.assertInOrder(events_of(result), 0, size)
        self.assertWithinWindow(calls)
        self.assertWritesTile(self.image, calls, 0, size)


class TestOnExt2(Refusing, TargetCase):
    target = 'ext2'


class TestOnExt3(Refusing, TargetCase):
    target = 'ext3'


class TestOnExt4WithoutExtents(Refusing, TargetCase):
    target = 'ext4-noextent'


class TestOnFuse(Refusing, FuseCase):
    pass


class RefusingServer(ImageChecks):
    """The same, counted where the requests arrive."""

    @each(*product(MODES, ('create', 'resize')))
    def test_B01_requests(self, mode, command):
        data = b''
        if command == 'resize':
            data = self.existing_image(OLD)
        self.succeeds(getattr(patched, command)(mode, self.image, SIZE))
        stats = self.t.stats()
        self.assertEqual(stats['write_one_byte'], 0)
        self.assertLessEqual(stats['write'], SIZE // SMALL)
        self.assertWrittenOnce(len(data), SIZE)

    @each('create', 'resize')
    def test_B01_stock_sends_one_byte_per_4_kib(self, command):
        """Otherwise the tests of B01 could not fail."""
        if command == 'resize':
            self.existing_image(MIB)
        self.succeeds(getattr(stock, command)('falloc', self.image, 9 * MIB))
        self.assertGreaterEqual(self.t.stats()['write_one_byte'],
                                8 * MIB // 4096)

    @each(*product(MODES, ('create', 'resize')))
    def test_B02_requests(self, mode, command):
        options = {}
        if command == 'resize':
            self.make(self.image, 'qcow2', 8 * MIB)
            self.t.reset()
            options['fmt'] = 'qcow2'
            words = patched.resize(mode, self.image, SIZE, **options)
        else:
            words = patched.create(mode, self.image, SIZE, 'qcow2')
        self.succeeds(words)
        stats = self.t.stats()
        self.assertEqual(stats['write_one_byte'], 0)
        self.assertLessEqual(stats['write'], SIZE // SMALL + METADATA_WRITES)


class TestRequests(RefusingServer, FuseCase):
    pass


class TestRequestsThroughThePageCache(RefusingServer, FuseCase):
    options = {'refuse_o_direct': 1}


class TestOverlay(ImageChecks, ImageCase):
    """An overlay whose upper directory is on a file system without
    fallocate(2), as in containers."""

    UPPER = 'ext3'
    ANSWER = 'EOPNOTSUPP'

    def setUp(self):
        self.t = self.mount(self.UPPER, size_mib=160)
        for name in ('lower', 'upper', 'work', 'overlay'):
            (self.t.dir / name).mkdir()
        self.lower = self.t.dir / 'lower' / 'image'
        self.overlay = self.t.dir / 'overlay'
        self.image = self.overlay / 'image'

    def mount_overlay(self):
        d = self.t.dir
        targets.run('mount', '-t', 'overlay', '-o',
                    f'lowerdir={d}/lower,upperdir={d}/upper,'
                    f'workdir={d}/work', 'overlay', self.overlay)
        self.addCleanup(targets.run, 'umount', self.overlay)

    @each(*product(MODES, FORMATS))
    def test_B12_create(self, mode, fmt):
        """A container's image on overlay: falloc ended with an error."""
        self.mount_overlay()
        calls = self.calls_of(patched.create(mode, self.image, SIZE, fmt))
        asked = fallocates(self.image, calls)
        self.assertEqual([f[3] for f in asked if f[0] == '0'],
                         [] if mode == 'full' else [self.ANSWER])
        self.assertAllocated(self.image, fmt, SIZE)

    @each(*product(MODES, ('upper', 'lower')))
    def test_B12_resize(self, mode, where):
        """A file of the lower directory is first copied up."""
        data = make_image(self.t.dir / where / 'image', OLD)
        self.mount_overlay()
        self.succeeds(patched.resize(mode, self.image, SIZE))
        self.assertAllocatedZeros(self.image, SIZE, data)
        if where == 'lower':
            self.assertUnchanged(self.lower, data)


class TestOverlayOnExt4(TestOverlay):
    """The same code where there is a fallocate(2)."""

    UPPER = 'ext4'
    ANSWER = None


class TestExtents(ImageChecks, ImageCase):
    """How a file is laid out where blocks are mapped one by one."""

    SIZE = 512 * MIB

    def extents(self, target, command):
        """Number of pieces on a new file system: where the file lies and
        what lay there before makes a difference of a half."""
        with targets.Target.mount(target, size_mib=1024) as t:
            image = t.dir / 'image'
            words = command(image)
            if 'resize' in words:
                make_image(image, OLD)
                targets.run('sync', image)
            self.succeeds(words)
            targets.run('sync', image)
            out = targets.run('filefrag', image)
        return int(out.rsplit(':', 1)[1].split()[0])

    @each(*product(MODES, ('create', 'resize'), ONE_AT_A_TIME))
    def test_B15_file_is_in_no_more_pieces(self, mode, command, target):
        """Files made by many small writes at once were slow to read."""
        theirs = self.extents(target, lambda image: getattr(stock, command)(
            'full', image, self.SIZE))
        ours = self.extents(target, lambda image: getattr(patched, command)(
            mode, image, self.SIZE))
        self.assertGreater(theirs, 0)
        # Where a new file begins is by chance, and with it whether it meets
        # one more boundary of a block group.
        self.assertLessEqual(ours, theirs * 1.1 + 1)


class TestOtherModes(ImageChecks, FuseCase):
    """falloc costs what full costs, and the others what they cost."""

    COUNTED = ('write', 'write_bytes', 'write_one_byte', 'write_rewritten',
               'read', 'fallocate', 'truncate')

    def stats_of(self, qemu, mode, fmt, command):
        self.image.unlink(missing_ok=True)
        if command == 'resize':
            self.make(self.image, fmt, 8 * MIB, data=MIB)
            words = qemu.resize(mode, self.image, SIZE, fmt=fmt)
        else:
            words = qemu.create(mode, self.image, SIZE, fmt)
        self.t.reset()
        result = run(words)
        stats = self.t.stats()
        return result, {name: stats[name] for name in self.COUNTED}

    @each(*product(('create', 'resize'), FORMATS, ('off', 'metadata')))
    def test_B34_off_and_metadata_are_as_in_stock(self, command, fmt, mode):
        self.assertEqual(self.stats_of(patched, mode, fmt, command),
                         self.stats_of(stock, mode, fmt, command))

    @each(*product(('create', 'resize'), FORMATS, ('falloc', 'auto')))
    def test_B34_falloc_costs_what_full_costs(self, command, fmt, mode):
        """falloc of qcow2 took an hour, full minutes."""
        result, stats = self.stats_of(patched, mode, fmt, command)
        _, full = self.stats_of(patched, 'full', fmt, command)
        self.assertEqual(result.status, 0, result)
        for name in ('write', 'write_bytes', 'write_one_byte'):
            self.assertLessEqual(stats[name], full[name])


if __name__ == '__main__':
    main()
