#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""qemu-img convert with preallocation: how often it writes each byte, what is
allocated afterwards, and on which targets auto works.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from e2e import (MIB, MODES, WRITE_ZEROES, BlockDeviceCase,  # noqa: E402
                 FuseCase, ImageCase, TargetCase, allocated, calls_on, each,
                 fallocates, main, old_data, patched, run, stock)
from nbd_server import nbd_server  # noqa: E402
from syscalls import WRITES  # noqa: E402

SIZE = 64 * MIB
DATA_PERCENT = 40
PIECES = 8
# Not multiples of 1 MiB, of 4 KiB, less than a block, and nothing at all
ODD_SIZES = (3 * MIB + 512, MIB + 4096, 512, 0)
CACHE_MODES = ('none', 'writeback', 'writethrough', 'unsafe')
SECRET = ('--object', 'secret,id=key,data=secret')
# Options of the target, and how to open it
FORMATS = {
    'raw': ('raw', ''),
    'qcow2': ('qcow2', ''),
    'qcow2 compat=0.10': ('qcow2', 'compat=0.10'),
    'qcow2 extended_l2': ('qcow2', 'extended_l2=on'),
    'qcow2 encrypted': ('qcow2', 'encrypt.format=luks,encrypt.iter-time=10,'
                                 'encrypt.key-secret=key'),
    'qcow2 compat=0.10 encrypted': (
        'qcow2', 'compat=0.10,encrypt.format=luks,encrypt.iter-time=10,'
                 'encrypt.key-secret=key'),
    'luks': ('luks', 'iter-time=10,key-secret=key'),
}
# What a header, tables and the like take
METADATA = 4 * MIB
# QEMU writes the first block of a raw image that it gives a length, so that
# the alignment of direct I/O can be found out
FIRST_BLOCK = 4096
NOT_PREALLOCATING = ('vdi', 'vmdk', 'vhdx', 'vpc', 'qed', 'qcow', 'parallels')
NO_SPACE = {'ENOSPC': 'No space left on device',
            'EDQUOT': 'Disk quota exceeded'}


def make_source(path, size=SIZE):
    """A sparse file with some pieces of data; returns their bytes."""
    written = 0
    with open(path, 'wb') as file:
        file.truncate(size)
        for i in range(PIECES):
            start = size * i // PIECES // 512 * 512
            data = old_data(size // PIECES * DATA_PERCENT // 100)
            file.seek(start)
            file.write(data)
            written += len(data)
    return written


def image_options(image, fmt):
    """How the converted image is opened."""
    words = [f'driver={fmt.split()[0]}', f'file.filename={image}']
    if fmt == 'luks':
        words.append('key-secret=key')
    if 'encrypted' in fmt:
        words += ['encrypt.format=luks', 'encrypt.key-secret=key']
    return ','.join(words)


def convert(mode, source, image, fmt='raw', *args, options='', qemu=patched):
    """A command; MODE is a preallocation mode, or S0 for -S 0."""
    name, more = FORMATS.get(fmt, (fmt, ''))
    words = [word for word in (more, options) if word]
    if mode == 'S0':
        args += ('-S', '0')
    else:
        words.append(f'preallocation={mode}')
    if words:
        args += ('-o', ','.join(words))
    secret = SECRET if 'key-secret=key' in more else ()
    sources = source if isinstance(source, list) else [source]
    return qemu.img('convert', *secret, '-f', 'raw', '-O', name, *args,
                    *sources, image)


class Converting:
    """Checks that all targets share; self.source is to be converted."""

    def make_source(self, size=SIZE, name='source'):
        directory = self.mount('tmpfs').dir
        self.source = directory / name
        return make_source(self.source, size)

    def assertSame(self, image, fmt='raw', source=None):
        if FORMATS.get(fmt, (fmt, ''))[0] == 'qcow2':
            secret = SECRET if 'encrypted' in fmt else ()
            self.succeeds(patched.img('check', *secret, '--image-opts',
                                      image_options(image, fmt)))
        self.succeeds(patched.img(
            'compare', *SECRET, '--image-opts',
            f'driver=raw,file.filename={source or self.source}',
            image_options(image, fmt)))

    def assertComplete(self, fmt='raw'):
        """Content, and that all is allocated."""
        self.assertSame(self.image, fmt)
        size = os.stat(self.source).st_size
        self.assertGreaterEqual(allocated(self.image), size)
        if fmt == 'raw':
            self.assertEqual(os.stat(self.image).st_size, size)


class TestWithoutFallocate(Converting, FuseCase):
    def convert(self, *args, **kwargs):
        """The server's counters of a conversion of self.source."""
        self.image.unlink(missing_ok=True)
        self.t.reset()
        self.succeeds(convert(*args, **kwargs))
        return self.t.stats()

    @each(*[(mode, fmt) for mode in MODES for fmt in FORMATS])
    def test_each_byte_is_written_once(self, mode, fmt):
        self.make_source()
        extra = FIRST_BLOCK if fmt == 'raw' else METADATA
        stats = self.convert(mode, self.source, self.image, fmt)
        self.assertLessEqual(stats['write_bytes'], SIZE + extra)
        self.assertLessEqual(stats['write_rewritten'], extra)
        self.assertEqual(stats['write_one_byte'], 0)
        self.assertComplete(fmt)

    @each(*[(mode, fmt) for mode in MODES for fmt in ('raw', 'qcow2')])
    def test_takes_no_more_requests_than_S_0(self, mode, fmt):
        self.make_source()
        theirs = self.convert('S0', self.source, self.image, fmt, qemu=stock)
        ours = self.convert(mode, self.source, self.image, fmt)
        self.assertLessEqual(ours['write'], 1.05 * theirs['write'])
        self.assertLessEqual(ours['write_bytes'], 1.01 * theirs['write_bytes'])

    def test_stock_writes_data_twice(self):
        """So that the others can fail."""
        data = self.make_source()
        stats = self.convert('full', self.source, self.image, qemu=stock)
        self.assertGreaterEqual(stats['write_bytes'], SIZE + data)
        stats = self.convert('falloc', self.source, self.image, qemu=stock)
        self.assertGreaterEqual(stats['write_one_byte'], SIZE // 4096)

    @each(*[(mode, fmt, size) for mode in MODES for fmt in ('raw', 'qcow2')
            for size in ODD_SIZES])
    def test_odd_sizes(self, mode, fmt, size):
        self.make_source(size)
        for cache in ('unsafe', 'none'):
            stats = self.convert(mode, self.source, self.image, fmt, '-t',
                                 cache)
            self.assertSame(self.image, fmt)
            if fmt == 'raw' and cache == 'unsafe':
                self.assertEqual(stats['write_bytes'],
                                 size + min(size, FIRST_BLOCK))
                self.assertComplete()

    @each(*[(mode, fmt, cache) for mode in MODES for fmt in ('raw', 'qcow2')
            for cache in CACHE_MODES])
    def test_is_flushed_with_each_cache_mode(self, mode, fmt, cache):
        self.make_source()
        stats = self.convert(mode, self.source, self.image, fmt, '-t', cache)
        self.assertGreaterEqual(stats['fsync'], 1)
        self.assertComplete(fmt)

    @each(*[(mode, words) for mode in MODES for words in (
        '-W', '-m 1', '-m 16', '-W -m 16', '-r 512M', '--salvage', '-S 0',
        '-S 64k', '-T none', '-U')])
    def test_with_other_options(self, mode, words):
        self.make_source()
        stats = self.convert(mode, self.source, self.image, 'raw',
                             *words.split())
        self.assertEqual((stats['write_bytes'], stats['write_rewritten']),
                         (SIZE + FIRST_BLOCK, FIRST_BLOCK))
        self.assertComplete()

    @each(*[(mode, fmt) for mode in MODES for fmt in ('raw', 'qcow2')])
    def test_of_several_sources(self, mode, fmt):
        self.make_source(MIB + 512, 'whole')
        parts = [self.source, self.source]
        self.convert(mode, parts, self.image, fmt)
        whole = self.t.dir / 'both'
        whole.write_bytes(2 * self.source.read_bytes())
        self.assertSame(self.image, fmt, whole)
        self.assertGreaterEqual(allocated(self.image), 2 * (MIB + 512))

    @each(*MODES)
    def test_of_a_snapshot(self, mode):
        self.make_source(8 * MIB)
        disk = self.source.with_name('disk')
        self.succeeds(convert('off', self.source, disk, 'qcow2'))
        self.succeeds(patched.img('snapshot', '-c', 'snap', disk))
        self.succeeds(patched.io('-f', 'qcow2', '-c', 'write -P 9 0 8M', disk))
        self.succeeds(patched.img(
            'convert', '-l', 'snap', '-O', 'raw', '-o',
            f'preallocation={mode}', disk, self.image))
        self.assertComplete()

    @each(*MODES)
    def test_of_an_image_with_a_backing_file(self, mode):
        self.make_source(8 * MIB)
        overlay = self.source.with_name('overlay')
        self.succeeds(patched.img('create', '-f', 'qcow2', '-b', self.source,
                                  '-F', 'raw', overlay))
        self.succeeds(patched.img('convert', '-O', 'raw', '-o',
                                  f'preallocation={mode}', overlay,
                                  self.image))
        self.assertComplete()

    @each(*[(mode, raw) for mode in MODES for raw in ('off', 'on')])
    def test_with_a_data_file(self, mode, raw):
        self.make_source()
        data = self.t.dir / 'data'
        stats = self.convert(
            mode, self.source, self.image, 'qcow2',
            options=f'data_file={data},data_file_raw={raw}')
        self.assertLessEqual(stats['write_bytes'], SIZE + METADATA)
        self.assertSame(self.image, 'qcow2')
        self.assertGreaterEqual(allocated(data), SIZE)

    @each(*[(mode, fmt) for mode in MODES for fmt in ('raw', 'qcow2')])
    def test_progress_is_that_of_the_bytes_written(self, mode, fmt):
        self.make_source()
        out = self.succeeds(convert(mode, self.source, self.image, fmt,
                                    '-p')).out
        percents = [float(p) for p in re.findall(r'\((\d+\.\d+)/100%\)', out)]
        self.assertEqual((percents[0], percents[-1]), (0, 100))
        self.assertEqual(percents, sorted(percents))
        # 2 MiB of 64 at a time
        self.assertLessEqual(max(b - a for a, b in
                                 zip(percents, percents[1:])), 3.2)

    # ---- errors ----

    @each(*[(mode, fmt, name) for mode in MODES for fmt in ('raw', 'qcow2')
            for name in NO_SPACE])
    def test_no_space_for_a_write(self, mode, fmt, name):
        self.make_source()
        self.t.control(quota=f'{20 * MIB}:{name}')
        self.fails(convert(mode, self.source, self.image, fmt),
                   'error while writing at byte', NO_SPACE[name], self.image)

    @each(*[(mode, fmt, name, cache) for mode in MODES
            for fmt in ('raw', 'qcow2') for name in NO_SPACE
            for cache in CACHE_MODES])
    def test_no_space_is_told_at_fsync_only(self, mode, fmt, name, cache):
        self.make_source(8 * MIB)
        self.t.control(fail_fsync=f'1:{name}')
        self.fails(convert(mode, self.source, self.image, fmt, '-t', cache),
                   NO_SPACE[name], self.image)

    def test_stock_does_not_look(self):
        """Without preallocation it is as in stock: unsafe does not flush."""
        self.make_source(8 * MIB)
        self.t.control(fail_fsync='1:EIO')
        self.succeeds(convert('S0', self.source, self.image))


class WithFallocate(Converting):
    """Targets that reserve space."""

    @each('falloc', 'auto')
    def test_raw_is_reserved_and_only_data_written(self, mode):
        data = self.make_source()
        calls = self.calls_of(convert(mode, self.source, self.image))
        writes = calls_on(self.image, calls, WRITES)
        self.assertLessEqual(sum(w.result for w in writes), data + MIB)
        self.assertEqual([(f[0], f[1], f[2]) for f in
                          fallocates(self.image, calls) if f[0] == '0'],
                         [('0', 0, SIZE)])
        self.assertComplete()

    @each(*[(mode, fmt) for mode in ('falloc', 'auto') for fmt in FORMATS])
    def test_formats(self, mode, fmt):
        self.make_source()
        self.succeeds(convert(mode, self.source, self.image, fmt))
        self.assertComplete(fmt)

    @each(*FORMATS)
    def test_full_writes_each_byte_once(self, fmt):
        self.make_source()
        calls = self.calls_of(convert('full', self.source, self.image, fmt))
        writes = calls_on(self.image, calls, WRITES)
        extra = FIRST_BLOCK if fmt == 'raw' else METADATA
        self.assertLessEqual(sum(w.result for w in writes), SIZE + extra)
        # That of tables of qcow2 has another mode
        self.assertEqual([f for f in fallocates(self.image, calls)
                          if f[0] in ('0', WRITE_ZEROES)], [])
        self.assertComplete(fmt)

    @each(*[(mode, fmt) for mode in ('falloc', 'full')
            for fmt in ('raw', 'qcow2')])
    def test_as_much_is_allocated_as_by_stock(self, mode, fmt):
        self.make_source()
        blocks = []
        for qemu in (stock, patched):
            self.image.unlink(missing_ok=True)
            self.succeeds(convert(mode, self.source, self.image, fmt,
                                  qemu=qemu))
            blocks.append(allocated(self.image))
        self.assertAlmostEqual(*blocks, delta=2 * MIB)

    @each(*[(mode, words) for mode in MODES for words in (
        '-S 0', '-S 64k', '-C', '-W', '-t none', '-t writethrough')])
    def test_with_other_options(self, mode, words):
        self.make_source()
        self.succeeds(convert(mode, self.source, self.image, 'raw',
                              *words.split()))
        self.assertComplete()

    @each(*MODES)
    def test_over_a_backing_file(self, mode):
        """What differs from it is zero here, and must stay allocated."""
        self.make_source()
        base = self.t.dir / 'base'
        base.write_bytes(b'\1' * SIZE)
        self.succeeds(convert(mode, self.source, self.image,
                              'qcow2 extended_l2', '-B', base, '-F', 'raw'))
        self.assertComplete('qcow2 extended_l2')

    def test_disk_is_too_small(self):
        self.make_source()
        self.t.fill(SIZE // 2)
        for mode in MODES:
            for fmt in ('raw', 'qcow2'):
                self.fails(convert(mode, self.source, self.image, fmt),
                           NO_SPACE['ENOSPC'], self.image)
                self.image.unlink(missing_ok=True)


class TestOnExt4(WithFallocate, TargetCase):
    target = 'ext4'


class TestOnXfs(WithFallocate, TargetCase):
    target = 'xfs'


class TestAutoOnADevice(Converting, BlockDeviceCase):
    """A device has old data, and is larger than the image."""

    @each(*[(words, size) for words in ('', '-t none', '-W', '-p', '-C')
            for size in (2 * MIB, MIB + 512)])
    def test_all_of_the_image_is_written_and_no_more(self, words, size):
        self.make_source(size)
        self.succeeds(convert('auto', self.source, self.device, 'raw',
                              *words.split()))
        subprocess.run(['sync', self.device], check=True)
        # O_DIRECT takes whole blocks
        end = -(-size // 4096) * 4096
        content = self.backing.read_bytes()
        self.assertTrue(content[:size] == self.source.read_bytes())
        self.assertTrue(content[end:] == self.data[end:], 'written beyond')
        self.assertEqual(allocated(self.backing), self.SIZE)

    def test_qcow2(self):
        self.make_source(2 * MIB)
        self.succeeds(convert('auto', self.source, self.device, 'qcow2'))
        self.assertSame(self.device, 'qcow2')

    @each('falloc', 'full', 'metadata')
    def test_other_modes_are_refused(self, mode):
        self.make_source(2 * MIB)
        results = [run(convert(mode, self.source, self.device, qemu=qemu))
                   for qemu in (stock, patched)]
        self.assertEqual(results[0].status, 1)
        self.assertEqual(*results)
        self.assertUntouched()

    @each('falloc', 'full', 'metadata')
    def test_other_modes_of_qcow2_do_as_in_stock(self, mode):
        """Which writes a header before the device refuses."""
        self.make_source(2 * MIB)
        results = [run(convert(mode, self.source, self.device, 'qcow2',
                               qemu=qemu)) for qemu in (stock, patched)]
        self.assertEqual(*results)


class TestAutoOnNbd(Converting, ImageCase):
    """A protocol that cannot create images."""

    def setUp(self):
        self.t = self.mount('tmpfs')
        self.disk = self.t.dir / 'disk'
        self.disk.write_bytes(old_data(SIZE))
        server = nbd_server(patched.dir / 'qemu-nbd', self.t.dir, 'disk')
        server.__enter__()
        self.addCleanup(server.__exit__, None, None, None)
        self.uri = f'nbd+unix:///?socket={self.t.dir}/socket'

    def test_all_is_written(self):
        self.make_source()
        self.succeeds(convert('auto', self.source, self.uri))
        self.assertTrue(self.disk.read_bytes() == self.source.read_bytes())
        self.assertGreaterEqual(allocated(self.disk), SIZE)

    @each('falloc', 'full', 'off', 'nonsense')
    def test_other_modes_are_as_in_stock(self, mode):
        self.make_source()
        results = [run(convert(mode, self.source, self.uri, qemu=qemu))
                   for qemu in (stock, patched)]
        self.assertEqual(*results)


class TestAutoForOtherFormats(Converting, TargetCase):
    target = 'ext4'

    @each(*NOT_PREALLOCATING)
    def test_all_is_written(self, fmt):
        self.make_source()
        self.succeeds(convert('auto', self.source, self.image, fmt))
        self.assertSame(self.image, fmt)
        self.assertGreaterEqual(allocated(self.image), SIZE)

    @each(*[(fmt, mode) for fmt in NOT_PREALLOCATING
            for mode in ('falloc', 'full', 'metadata')])
    def test_other_modes_are_as_in_stock(self, fmt, mode):
        self.make_source()
        outcomes = []
        for qemu in (stock, patched):
            self.image.unlink(missing_ok=True)
            result = run(convert(mode, self.source, self.image, fmt,
                                 qemu=qemu))
            outcomes.append((result, self.image.exists()
                             and allocated(self.image) // MIB))
        self.assertEqual(*outcomes)

    @each('vmdk', 'qed')
    def test_not_with_a_backing_file(self, fmt):
        self.make_source()
        base = self.t.dir / 'base'
        self.succeeds(convert('off', self.source, base, fmt))
        self.fails(convert('auto', self.source, self.image, fmt, '-B', base,
                           '-F', fmt),
                   'Backing file and preallocation cannot be used at the '
                   'same time')
        self.assertFalse(self.image.exists())

    def test_not_where_the_format_compresses(self):
        self.make_source()
        self.fails(convert('auto', self.source, self.image, 'vmdk',
                           options='subformat=streamOptimized'),
                   "Preallocation mode 'auto' not supported for images that "
                   'are compressed')

    @each('qcow', 'vmdk')
    def test_flushes_no_more_than_S_0(self, fmt):
        """Not once for each cluster, since nobody asked for it."""
        self.make_source(4 * MIB)
        flushes = [len(calls_on(self.image, self.calls_of(
            convert(mode, self.source, self.image, fmt)),
            ('fsync', 'fdatasync'))) for mode in ('S0', 'auto')]
        self.assertEqual(*flushes)

    @each('qcow', 'vmdk', 'qcow2')
    def test_not_compressed(self, fmt):
        self.make_source()
        self.fails(convert('auto', self.source, self.image, fmt, '-c'),
                   'Compression and preallocation not supported at the same '
                   'time')
        self.assertFalse(self.image.exists())


if __name__ == '__main__':
    main()
