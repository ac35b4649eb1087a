#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Proves that the test targets behave as the tests that use them assume.

As root everything is tested; as a user what a user can mount (FUSE).
"""
import errno
import fcntl
import mmap
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / 'lib'), str(HERE)]

import syscalls  # noqa: E402
import targets  # noqa: E402
from tap import main  # noqa: E402
from targets import MIB, Target, is_root  # noqa: E402

O_NEW = os.O_RDWR | os.O_CREAT
MOUNT_TARGET = HERE / 'mount-target'


def aligned_buffer(size):
    """A buffer of zeros that O_DIRECT takes."""
    return mmap.mmap(-1, size)


def data(size):
    """Bytes in memory: the kernel ends a request where it must fault one in,
    as for the fresh zero pages of bytes(size)."""
    return b'x' * size


class Opened:
    """A file opened for the length of a with statement."""

    def __init__(self, path, flags=O_NEW):
        self.path, self.flags = path, flags

    def __enter__(self):
        self.fd = os.open(self.path, self.flags, 0o600)
        return self.fd

    def __exit__(self, *_):
        os.close(self.fd)


class FuseCase(unittest.TestCase):
    """Each test gets a fresh mount, with the options of its class."""

    options = {}

    def setUp(self):
        self.mount(**self.options)

    def mount(self, **options):
        context = Target.mount('fuse', **options)
        self.t = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        self.file = self.t.dir / 'file'

    def assertFails(self, name, function, *args):
        with self.assertRaises(OSError) as caught:
            function(*args)
        self.assertEqual(errno.errorcode[caught.exception.errno], name)

    def assertStats(self, **expected):
        stats = self.t.stats()
        self.assertEqual({k: stats[k] for k in expected}, expected)


class TestFallocate(FuseCase):
    def test_is_refused_with_the_errno_asked_for(self):
        with Opened(self.file) as fd:
            for name in ('ENOSPC', 'EDQUOT', 'EINVAL', 'EPERM', 'EIO',
                         'EINTR', 'EFBIG', 'EOPNOTSUPP'):
                with self.subTest(name):
                    self.t.control(fallocate=name)
                    self.assertEqual(self.fallocate_error(), name)
                    if name not in ('EOPNOTSUPP', 'EINTR'):
                        # No reason for libc to emulate (nor for Python
                        # to try again).
                        self.assertFails(name, os.posix_fallocate, fd, 0, 1)
        self.assertEqual(self.file.stat().st_size, 0)

    def fallocate_error(self):
        """What the system call itself answers, without libc's emulation."""
        calls = syscalls.strace_calls(
            ['fallocate', '--length', '4096', self.file], status=1)
        return [c.error for c in calls if c.name == 'fallocate'][0]

    def test_enosys_reaches_the_caller_as_eopnotsupp(self):
        self.t.control(fallocate='ENOSYS')
        self.file.touch()
        self.assertEqual(self.fallocate_error(), 'EOPNOTSUPP')
        self.assertEqual(self.fallocate_error(), 'EOPNOTSUPP')
        # The kernel remembers and does not ask again.
        self.assertStats(fallocate=1)

    def test_can_be_allowed(self):
        self.t.control(fallocate='ok')
        with Opened(self.file) as fd:
            os.posix_fallocate(fd, 0, MIB)
        self.assertEqual(self.file.stat().st_size, MIB)
        self.assertGreaterEqual(targets.allocated(self.file), MIB)
        self.assertStats(fallocate=1, write=0)

    def test_emulation_of_libc_is_seen_as_one_byte_writes(self):
        with Opened(self.file) as fd:
            os.posix_fallocate(fd, 0, MIB)
        self.assertStats(fallocate=1, write=256, write_one_byte=256,
                         write_bytes=256, write_largest=1, write_smallest=1,
                         write_rewritten=0, write_lowest_offset=4095,
                         write_highest_end=MIB)


class TestCounters(FuseCase):
    def test_known_sequence(self):
        with Opened(self.file) as fd:
            os.pwrite(fd, data(3000), 0)
            os.pwrite(fd, data(5000), 8192)
            os.fsync(fd)
            os.ftruncate(fd, 1 << 33)
            os.pwrite(fd, b'x', (1 << 33) - 1)
        with Opened(self.file, os.O_RDONLY | os.O_DIRECT) as fd:
            self.assertEqual(os.preadv(fd, [aligned_buffer(8192)], 0), 8192)
        self.file.rename(self.t.dir / 'new')
        (self.t.dir / 'new').unlink()
        self.assertStats(create=1, open=1, write=3, write_bytes=8001,
                         write_largest=5000, write_smallest=1,
                         write_one_byte=1, write_in_flight_max=1,
                         write_rewritten=0, write_lowest_offset=0,
                         write_highest_end=1 << 33, fsync=1, flush=2,
                         truncate=1, read=1, read_bytes=8192, rename=1,
                         unlink=1, fallocate=0, faults=0)

    def test_bytes_written_again(self):
        with Opened(self.file) as fd:
            os.pwrite(fd, data(1000), 1000)
            os.pwrite(fd, data(1000), 3000)
            self.assertStats(write_rewritten=0)
            os.pwrite(fd, data(3000), 500)     # 1000, and 500 of the second
            self.assertStats(write_rewritten=1500)
            os.ftruncate(fd, 2000)              # these come anew
            os.pwrite(fd, data(1000), 1900)
            self.assertStats(write_rewritten=1600)

    def test_reset(self):
        self.file.write_bytes(data(1000))
        self.t.reset()
        self.assertEqual(set(self.t.stats().values()), {0})
        self.file.write_bytes(data(1000))
        self.assertStats(write=1, write_rewritten=0)

    def test_counters_themselves_are_not_counted(self):
        before = self.t.stats()
        self.assertEqual(before, self.t.stats())
        self.assertNotIn('.stats', os.listdir(self.t.dir))

    def test_control_refuses_what_it_does_not_know(self):
        for setting in ({'nonsense': 1}, {'max_write': 4096},
                        {'fallocate': 'EFOO'}, {'latency_us': '-1'}):
            with self.subTest(setting):
                self.assertFails('EINVAL', lambda s=setting:
                                 self.t.control(**s))


class TestFaults(FuseCase):
    def test_nth_write_fails(self):
        self.t.control(fail_write='2:ENOSPC')
        with Opened(self.file) as fd:
            os.pwrite(fd, b'one', 0)
            self.assertFails('ENOSPC', os.pwrite, fd, b'two', 3)
            os.pwrite(fd, b'three', 3)
        self.assertEqual(self.file.read_bytes(), b'onethree')
        self.assertStats(faults=1, write=3)

    def test_nth_write_is_short(self):
        self.t.control(short_write='1:100')
        with Opened(self.file) as fd:
            self.assertEqual(os.pwrite(fd, b'x' * 5000, 0), 100)
            self.assertEqual(os.pwrite(fd, b'x' * 4900, 100), 4900)
        self.assertEqual(self.file.read_bytes(), b'x' * 5000)
        self.assertStats(faults=1, write_rewritten=0)

    def test_nth_direct_write_is_short(self):
        self.t.control(short_write='1:4096')
        with Opened(self.file, O_NEW | os.O_DIRECT) as fd:
            # What the kernel makes of it.
            self.assertFails('EIO', os.pwrite, fd, aligned_buffer(8192), 0)

    def test_nth_fsync_fails(self):
        self.t.control(fail_fsync='2:EDQUOT')
        with Opened(self.file) as fd:
            os.fsync(fd)
            self.assertFails('EDQUOT', os.fsync, fd)
            os.fsync(fd)
        self.assertStats(faults=1, fsync=3)

    def test_quota(self):
        self.t.control(quota='10000:EDQUOT')
        with Opened(self.file) as fd:
            os.pwrite(fd, data(8192), 0)
            os.pwrite(fd, data(8192), 0)       # no more than before
            self.assertFails('EDQUOT', os.pwrite, fd, data(1809), 8192)
            os.pwrite(fd, data(1808), 8192)
            os.ftruncate(fd, 0)                 # gives the bytes back
            os.pwrite(fd, data(10000), 0)

    def test_file_size_limit(self):
        self.t.control(max_file_size=10000, fallocate='ok')
        with Opened(self.file) as fd:
            os.pwrite(fd, data(10000), 0)
            self.assertFails('EFBIG', os.pwrite, fd, b'x', 10000)
            self.assertFails('EFBIG', os.ftruncate, fd, 10001)
            self.assertFails('EFBIG', os.posix_fallocate, fd, 0, 10001)
        self.assertEqual(self.file.stat().st_size, 10000)

    def test_o_direct_is_refused(self):
        self.file.touch()
        with Opened(self.file, os.O_RDWR | os.O_DIRECT):
            pass
        self.t.control(refuse_o_direct=1)
        for path in (self.file, self.t.dir / 'new'):
            self.assertFails('EINVAL', os.open, path, O_NEW | os.O_DIRECT)


class TestLatency(FuseCase):
    options = {'latency_us': 100000}

    def test_is_of_every_request(self):
        with Opened(self.file) as fd:
            begin = time.monotonic()
            for _ in range(4):
                os.pwrite(fd, b'x', 0)
            self.assertGreater(time.monotonic() - begin, 0.4)

    def test_overlaps_within_a_direct_write(self):
        with Opened(self.file, O_NEW | os.O_DIRECT) as fd:
            os.ftruncate(fd, 8 * MIB)
            self.t.reset()
            begin = time.monotonic()
            os.pwrite(fd, aligned_buffer(8 * MIB), 0)
            seconds = time.monotonic() - begin
        self.assertStats(write=8)
        self.assertGreater(self.t.stats()['write_in_flight_max'], 3)
        self.assertLess(seconds, 8 * 0.1)

    def test_overlaps_between_files(self):
        def write(number):
            (self.t.dir / str(number)).write_bytes(b'x')

        threads = [threading.Thread(target=write, args=(i,))
                   for i in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertGreater(self.t.stats()['write_in_flight_max'], 3)

    def test_of_chosen_requests(self):
        self.t.control(latency_ops='fsync:truncate')
        with Opened(self.file) as fd:
            calls = [(os.pwrite, fd, b'x', 0), (os.fsync, fd),
                     (os.ftruncate, fd, 5)]
            for (function, *args), slow in zip(calls, (False, True, True)):
                begin = time.monotonic()
                function(*args)
                self.assertEqual(time.monotonic() - begin > 0.1, slow)


class TestMountOptions(FuseCase):
    def setUp(self):
        pass

    def test_max_write(self):
        self.mount(max_write=65536)
        with Opened(self.file, O_NEW | os.O_DIRECT) as fd:
            os.pwrite(fd, aligned_buffer(MIB), 0)
        self.assertStats(write=16, write_largest=65536, write_smallest=65536)

    def test_default_max_write_is_one_mib(self):
        self.mount()
        with Opened(self.file, O_NEW | os.O_DIRECT) as fd:
            os.pwrite(fd, aligned_buffer(4 * MIB), 0)
        self.assertStats(write=4, write_largest=MIB)

    def test_writeback_cache(self):
        self.mount(writeback=1)
        with Opened(self.file) as fd:
            for i in range(64):
                os.pwrite(fd, b'x' * 4096, 4096 * i)
            self.assertStats(write=0)
            os.fsync(fd)
        stats = self.t.stats()
        self.assertEqual(stats['write_bytes'], 64 * 4096)
        self.assertLess(stats['write'], 64)

    def test_writeback_cache_reports_errors_at_fsync(self):
        self.mount(writeback=1)
        self.t.control(fail_write='1:ENOSPC')
        with Opened(self.file) as fd:
            os.pwrite(fd, data(4096), 0)
            self.assertFails('ENOSPC', os.fsync, fd)

    def test_discarded_data(self):
        self.mount(data='discard')
        self.file.write_bytes(b'x' * 100000)
        self.assertEqual(self.file.stat().st_size, 100000)
        self.assertEqual(targets.allocated(self.file), 0)
        with Opened(self.file, os.O_RDONLY | os.O_DIRECT) as fd:
            buffer = aligned_buffer(4096)
            os.preadv(fd, [buffer], 0)
            self.assertEqual(buffer[:], bytes(4096))

    def test_bad_option_is_named(self):
        with self.assertRaisesRegex(targets.TargetError,
                                    'bad value: fallocate=EFOO'):
            self.mount(fallocate='EFOO')

    def test_end_of_the_server_in_a_test_is_an_error(self):
        with self.assertRaisesRegex(targets.TargetError, 'exit status -9'):
            with Target.mount('fuse') as t:
                t.server.kill()
                t.server.wait()


class TestOrdinaryUse(FuseCase):
    def test_tree_is_copied(self):
        source = self.t.dir / 'source'
        source.mkdir()
        (source / 'data').write_bytes(os.urandom(300000))
        (source / 'data').chmod(0o640)
        os.utime(source / 'data', (1000, 2000))
        (source / 'link').symlink_to('data')
        os.link(source / 'data', source / 'hard')
        os.mkfifo(source / 'fifo')
        (source / 'many').mkdir()
        for i in range(1000):
            (source / 'many' / f'a-rather-long-name-{i}').touch()
        copy = self.t.dir / 'copy'
        subprocess.run(['cp', '-a', source, copy], check=True)
        subprocess.run(['diff', '-r', '--no-dereference', '-x', 'fifo',
                        source, copy], check=True)
        st = (copy / 'data').stat()
        self.assertEqual((st.st_mode & 0o777, st.st_mtime, st.st_nlink),
                         (0o640, 2000, 2))
        self.assertEqual(len(os.listdir(copy / 'many')), 1000)
        subprocess.run(['rm', '-r', source, copy], check=True)
        self.assertEqual(os.listdir(self.t.dir), [])

    def test_deleted_file_stays_usable(self):
        with Opened(self.file) as fd:
            os.pwrite(fd, b'data', 0)
            self.file.unlink()
            self.assertEqual(os.fstat(fd).st_nlink, 0)
            os.ftruncate(fd, 3)
            self.assertEqual(os.pread(fd, 10, 0), b'dat')

    def test_append_and_truncating_open(self):
        for text in ('one', 'two'):
            with open(self.file, 'a') as file:
                file.write(text)
        self.assertEqual(self.file.read_text(), 'onetwo')
        self.file.write_text('x')
        self.assertEqual(self.file.read_text(), 'x')

    def test_st_blocks_and_holes_are_the_backing_files(self):
        with Opened(self.file) as fd:
            os.ftruncate(fd, 1 << 33)
            os.pwrite(fd, data(MIB), 1 << 32)
            self.assertEqual(targets.allocated(self.file), MIB)
            self.assertEqual(os.lseek(fd, 0, os.SEEK_DATA), 1 << 32)

    def test_ofd_locks(self):
        def lock(fd, kind):
            request = struct.pack('hhqqi4x', kind, os.SEEK_SET, 100, 1, 0)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, request)

        with Opened(self.file) as one, Opened(self.file) as two:
            lock(one, fcntl.F_WRLCK)
            self.assertFails('EAGAIN', lock, two, fcntl.F_WRLCK)
            lock(one, fcntl.F_UNLCK)
            lock(two, fcntl.F_WRLCK)

    def test_page_cache_of_a_file(self):
        self.file.write_bytes(data(MIB))
        self.assertEqual(targets.fincore(self.file), MIB)
        other = self.t.dir / 'other'
        with Opened(other, O_NEW | os.O_DIRECT) as fd:
            os.pwrite(fd, aligned_buffer(MIB), 0)
        self.assertEqual(targets.fincore(other), 0)

    def test_many_writers_of_one_file(self):
        size = 16 * MIB
        with Opened(self.file) as fd:
            os.ftruncate(fd, size)

            def write(first):
                for offset in range(first * 4096, size, 8 * 4096):
                    os.pwrite(fd, bytes([first + 1]) * 4096, offset)

            threads = [threading.Thread(target=write, args=(i,))
                       for i in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertStats(write=4096, write_bytes=size, write_rewritten=0)
        expected = b''.join(bytes([i + 1]) * 4096 for i in range(8))
        self.assertEqual(self.file.read_bytes(),
                         expected * (size // len(expected)))


class TestSyscalls(FuseCase):
    def test_calls_of_threads_are_whole(self):
        self.t.control(latency_us=20000)
        program = ('import os, sys, threading\n'
                   'def write(i):\n'
                   '    with open(sys.argv[1] + str(i), "wb", 0) as f:\n'
                   '        f.write(b"a, (b\\"" * 10)\n'
                   'for i in range(8):\n'
                   '    threading.Thread(target=write, args=(i,)).start()\n')
        calls = syscalls.strace_calls([sys.executable, '-c', program,
                                       self.file])
        writes = [c for c in calls if c.name == 'write'
                  and (c.path or '').startswith(str(self.file))]
        self.assertEqual(len(writes), 8)
        self.assertEqual([(len(c.args), c.args[2], c.result, c.error)
                          for c in writes], 8 * [(3, '60', 60, None)])
        self.assertGreater(syscalls.in_flight_max(writes), 1)

    def test_lines_of_every_kind(self):
        def parse(text):
            call = syscalls.parse_line(1, f'5.5 {text}')
            return call and tuple(call[3:])

        self.assertEqual(
            parse('openat(AT_FDCWD</a, b>, "x)y\\",", O_RDONLY) '
                  '= -1 ENOENT (No such file or directory) <0.1>'),
            ('openat', ['AT_FDCWD</a, b>', '"x)y\\","', 'O_RDONLY'], -1,
             'ENOENT'))
        self.assertEqual(
            parse('pwritev(3</f>, [{iov_base="\\0"..., iov_len=9}, {iov_base='
                  '"", iov_len=0}], 2, 0) = 9 <0.000010>')[2:], (9, None))
        self.assertEqual(parse('open("x", O_RDONLY) = 4</x (y)> <0.1>')[2:],
                         (4, None))
        self.assertEqual(parse('write(1</x>, "a", 1 <unfinished ...>'),
                         ('write', ['1</x>', '"a"', '1'], None, None))
        self.assertEqual(parse('exit_group(0)     = ?'),
                         ('exit_group', ['0'], None, None))
        self.assertIsNone(parse('+++ exited with 0 +++'))
        with self.assertRaises(syscalls.StraceError):
            parse('write(1, "a"')


class TestUser(unittest.TestCase):
    def open_fuse_device_to_all(self):
        """As udev does it, where there is one; in our namespace only."""
        device = targets.workspace().new_dir('dev') / 'fuse'
        os.mknod(device, stat.S_IFCHR, os.stat('/dev/fuse').st_rdev)
        device.chmod(0o666)
        targets.run('mount', '--bind', device, '/dev/fuse')
        self.addCleanup(targets.run, 'umount', '--lazy',
                        '/dev/fuse')

    def provide_mtab(self):
        """As systemd does it; without it fusermount3 does nothing for users."""
        if os.path.lexists('/etc/mtab'):
            return
        etc = targets.workspace().new_dir('etc') / 'etc'
        shutil.copytree('/etc', etc, symlinks=True)
        (etc / 'mtab').symlink_to('/proc/mounts')
        targets.run('mount', '--bind', etc, '/etc')
        self.addCleanup(targets.run, 'umount', '--lazy', '/etc')

    @unittest.skipUnless(is_root(), 'is a user: all other tests show this')
    def test_mounts_through_fusermount3(self):
        with tempfile.TemporaryDirectory() as work:
            os.chmod(work, 0o755)
            self.open_fuse_device_to_all()
            self.provide_mtab()
            script = Path(work) / 'script'
            mount, backing = Path(work) / 'mnt', Path(work) / 'backing'
            for directory in (mount, backing):
                directory.mkdir()
                os.chown(directory, 65534, 65534)
            program = Path(work) / 'nofalloc-fs'
            program.write_bytes(targets.NOFALLOC_FS.read_bytes())
            program.chmod(0o755)
            script.write_text(
                f'set -e\n{program} {backing} {mount}\n'
                f'echo data > {mount}/file\n'
                f'grep -q \'"write": 1,\' {mount}/.stats\n'
                f'! fallocate -l 4096 {mount}/file 2>/dev/null\n'
                f'fusermount3 -u {mount}\n')
            subprocess.run(['setpriv', '--reuid=65534', '--regid=65534',
                            '--clear-groups', 'sh', script], check=True)
            self.assertEqual((backing / 'file').read_text(), 'data\n')
            self.assertEqual((backing / 'file').stat().st_uid, 65534)


def fallocate_error(path):
    calls = syscalls.strace_calls(
        ['fallocate', '--length', '1048576', path], status=None)
    return [c.error for c in calls if c.name == 'fallocate'][0]


@unittest.skipUnless(is_root(), 'needs root')
class TestLocalTargets(unittest.TestCase):
    def check(self, name, fallocate):
        with Target.mount(name) as t:
            file = t.dir / 'file'
            self.assertEqual(fallocate_error(file), fallocate)
            self.assertEqual(t.has_fallocate, fallocate is None)
            if name != 'tmpfs':
                device = Path(f'/sys/block/{t.device.name}/loop')
                self.assertEqual((device / 'dio').read_text().strip(), '1')
                self.assertEqual(
                    (device / 'autoclear').read_text().strip(), '1')
                image = t.work / 'image'
                self.assertGreaterEqual(targets.allocated(image),
                                        t.size_mib * MIB)
        self.assertFalse(t.work.exists())

    def test_ext2(self):
        self.check('ext2', 'EOPNOTSUPP')

    def test_ext3(self):
        self.check('ext3', 'EOPNOTSUPP')

    def test_ext4_without_extents(self):
        self.check('ext4-noextent', 'EOPNOTSUPP')

    def test_ext4(self):
        self.check('ext4', None)

    def test_xfs(self):
        self.check('xfs', None)

    def test_btrfs(self):
        self.check('btrfs', None)

    def test_tmpfs(self):
        self.check('tmpfs', None)

    def test_filled_file_system_is_full(self):
        for name in ('tmpfs', 'ext4'):
            with self.subTest(name), Target.mount(name, size_mib=32) as t:
                t.fill(leave=MIB)
                self.assertLessEqual(t.free_bytes(), MIB + 4096)
                self.assertGreater(t.free_bytes(), MIB // 2)
                with self.assertRaises(OSError) as caught:
                    (t.dir / 'file').write_bytes(data(2 * MIB))
                self.assertEqual(caught.exception.errno, errno.ENOSPC)

    def test_unknown_target_and_option(self):
        for name, options, text in (('ext5', {}, 'unknown target ext5'),
                                    ('ext4', {'x': 1}, 'takes no option x')):
            with self.assertRaisesRegex(targets.TargetError, text):
                with Target.mount(name, **options):
                    pass


class TestCommand(unittest.TestCase):
    def run_command(self, *words):
        return subprocess.run([sys.executable, MOUNT_TARGET] + list(words),
                              stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)

    def test_status_and_mount(self):
        with tempfile.TemporaryDirectory() as point:
            result = self.run_command(
                'fuse', point, 'fallocate=EIO', '--', 'sh', '-c',
                f'fallocate -l 1 {point}/file; echo $?; exit 7')
            self.assertEqual(result.returncode, 7, result.stdout)
            self.assertRegex(result.stdout, 'Input/output error\n1\n')
            self.assertEqual(os.listdir(point), [])

    def test_bad_input_is_named(self):
        for words, text in (
                ((), 'no "--" before the command'),
                (('fuse', '/nonexistent', '--', 'true'),
                 '/nonexistent: no such directory'),
                (('fuse', '/tmp', 'latency', '--', 'true'),
                 'not key=value: latency'),
                (('ext5', '/tmp', '--', 'true'), 'unknown target ext5')):
            result = self.run_command(*words)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f'mount-target: {text}', result.stdout)
            self.assertEqual(result.stdout.count('\n'), 1)


class TestKilled(unittest.TestCase):
    """What a test program leaves behind that is killed."""

    def setUp(self):
        """A build directory of its own: others may be testing too."""
        build = targets.workspace().new_dir('build')
        program = build / 'tests' / 'targets' / 'nofalloc-fs'
        program.parent.mkdir(parents=True)
        program.symlink_to(targets.NOFALLOC_FS)
        self.base = build / 'targets'
        self.environment = dict(os.environ, PREALLOC_BUILD=str(build))
        self.environment.pop(targets.IN_NAMESPACE, None)
        self.point = build / 'point'
        self.point.mkdir()

    def start(self, name, command):
        return subprocess.Popen(
            [sys.executable, MOUNT_TARGET, name, self.point, '--', 'sh',
             '-c', command], stdout=subprocess.PIPE, text=True,
            env=self.environment)

    def start_another(self):
        other = self.base.parent / 'other'
        other.mkdir(exist_ok=True)
        subprocess.run([sys.executable, MOUNT_TARGET, 'fuse', other, '--',
                        'true'], check=True, env=self.environment)

    def directories(self):
        return list(self.base.glob('run-*'))

    def left_running(self):
        """Processes with our mount point among their arguments."""
        for file in Path('/proc').glob('[0-9]*/cmdline'):
            try:
                if str(self.point) in file.read_text(errors='replace'):
                    yield file
            except OSError:
                pass            # it has ended meanwhile

    def is_left(self):
        return (targets.mounts_below(self.point) or
                list(targets._loop_devices(self.base)) or
                list(self.left_running()))

    def check(self, name):
        child = self.start(name, 'echo mounted; exec sleep 5')
        self.assertEqual(child.stdout.readline(), 'mounted\n')
        self.assertTrue(list(self.left_running()))
        self.assertEqual(bool(list(targets._loop_devices(self.base))),
                         name in targets.LOOP_TARGETS)
        first = self.directories()
        self.start_another()
        self.assertEqual(self.directories(), first)     # is in use

        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        deadline = time.monotonic() + 10
        while self.is_left():
            self.assertLess(time.monotonic(), deadline, 'still there')
            time.sleep(0.05)
        self.assertEqual(self.directories(), first)

        self.start_another()
        self.assertEqual(self.directories(), [])

    def test_fuse_leaves_no_mount(self):
        self.check('fuse')

    @unittest.skipUnless(is_root(), 'needs root')
    def test_loop_leaves_no_device(self):
        self.check('ext4')


def setUpModule():
    targets.check_built()


def tearDownModule():
    targets.remove_workspace()


if __name__ == '__main__':
    targets.run_in_namespace()
    main()
