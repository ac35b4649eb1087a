# SPDX-License-Identifier: GPL-2.0-or-later
"""What the end-to-end tests share: the QEMU builds and checks of images.

The tools come from the directory that QEMU_PREALLOC_BUILD names (default:
build/qemu/7.2), which scripts/build-qemu fills: stock/ and patched/.
"""
import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(REPOSITORY / 'tests' / name)
                for name in ('lib', 'targets')]

import syscalls  # noqa: E402
import targets  # noqa: E402
from tap import main as tap_main  # noqa: E402
from targets import MIB, Target, allocated  # noqa: E402

BUILD = Path(os.environ.get('QEMU_PREALLOC_BUILD',
                            REPOSITORY / 'build' / 'qemu' / '7.2')).resolve()
TOOLS = ('qemu-img', 'qemu-io', 'storage-daemon/qemu-storage-daemon')
MODES = ('falloc', 'full', 'auto')
# QEMU measures how fast it derives LUKS keys, by a clock that some kernels
# advance too seldom. Has nothing to do with preallocation: try again.
NO_CPU_TIME = 'Unable to get accurate CPU usage'


class Result(NamedTuple):
    status: int
    out: str
    err: str


def again(function, *args, **options):
    """A function's Result, of one more try where only the clock was too
    coarse."""
    for _ in range(20):
        result = function(*args, **options)
        if NO_CPU_TIME not in result.err:
            break
    return result


def run(command, **options):
    """Run a command to its end, whatever that is."""
    return again(_run_once, command, **options)


def _run_once(command, **options):
    result = subprocess.run([str(word) for word in command],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True,
                            errors='replace', **options)
    return Result(result.returncode, result.stdout, result.stderr)


class Qemu:
    """The tools of one build. The methods return what to run."""

    def __init__(self, variant):
        self.dir = BUILD / variant

    def version(self):
        """Major and minor, as numbers."""
        words = run(self.img('--version')).out.split()
        return tuple(int(word) for word in words[2].split('.')[:2])

    def img(self, *args):
        return [self.dir / 'qemu-img', *args]

    def io(self, *args):
        return [self.dir / 'qemu-io', *args]

    def storage_daemon(self, *args):
        return [self.dir / 'storage-daemon' / 'qemu-storage-daemon', *args]

    def create(self, mode, image, size, fmt='raw'):
        return self.img('create', '-f', fmt, '-o', f'preallocation={mode}',
                        image, size)

    def resize(self, mode, image, size, **options):
        """Options as those of file_options()."""
        return self.img('resize', f'--preallocation={mode}', '--image-opts',
                        file_options(image, **options), size)

    def convert(self, mode, source, image, fmt='raw'):
        return self.img('convert', '-O', fmt, '-o', f'preallocation={mode}',
                        source, image)


def traced(command, events='file_prealloc_*'):
    """The command with trace events, which it prints among its errors."""
    return [command[0], '--trace', events, *command[1:]]


def file_size_limit(size):
    """A preexec_fn: a process that writes more gets SIGXFSZ."""
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return limit


stock = Qemu('stock')
patched = Qemu('patched')


def file_options(image, direct=False, aio=None, locking=None, fmt='raw'):
    """A value of --image-opts that says how the file is opened."""
    words = [f'driver={fmt}', 'file.driver=file',
             f'file.filename={str(image).replace(",", ",,")}',
             f'file.cache.direct={"on" if direct else "off"}']
    words += [f'file.aio={aio}'] if aio else []
    words += [f'file.locking={locking}'] if locking else []
    return ','.join(words)


class InteractiveIo:
    """A qemu-io that takes one command after the other."""

    PROMPT = b'qemu-io> '

    def __init__(self, command):
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0)
        self._answer()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def _answer(self):
        answer = b''
        while not answer.endswith(self.PROMPT):
            data = self.process.stdout.read(4096)
            if not data:
                raise AssertionError(f'qemu-io ended: {answer!r}')
            answer += data
        return answer[:-len(self.PROMPT)].decode(errors='replace')

    def do(self, command):
        """Run a command; returns what it prints."""
        self.process.stdin.write(command.encode() + b'\n')
        return self._answer()


def injected_calls(command, *faults):
    """Run a command with faults injected by strace.

    Returns its Result and its system calls; a fault is what strace(1)
    describes at -e inject.
    """
    with tempfile.TemporaryDirectory() as directory:
        names = ','.join('?' + name for name in syscalls.FILE_CALLS)
        strace = ['strace', '-ff', '-ttt', '-T', '-y', '-s', '16', '-e',
                  f'trace={names}', '-o', f'{directory}/trace']
        for fault in faults:
            strace += ['-e', f'inject={fault}']
        result = run(strace + command)
        return result, syscalls.read_trace(directory)


def locks_of(path):
    """Mode and range of the locks of a file, from the kernel."""
    st = os.stat(path)
    file = (f'{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:'
            f'{st.st_ino}')
    lines = [line.split() for line in
             Path('/proc/locks').read_text().splitlines()]
    return sorted((line[3], line[6], line[7]) for line in lines
                  if line[5] == file)


# ---- system calls on an image ----------------------------------------------

READS = ('read', 'readv', 'pread64', 'preadv', 'preadv2')
CHANGES = syscalls.WRITES + ('fallocate', 'ftruncate', 'truncate')
WRITE_ZEROES = 'write zeroes'


def calls_on(image, calls, names):
    return [c for c in calls if c.name in names and c.path == str(image)]


def fallocate_of(call):
    """(mode, offset, length, error) of a call of fallocate(2)."""
    mode, offset, length = call.args[1:4]
    # Older versions of strace print the number and a comment.
    if mode.startswith('0x80') or mode == 'FALLOC_FL_WRITE_ZEROES':
        mode = WRITE_ZEROES
    return mode, int(offset), int(length), call.error


def fallocates(image, calls):
    return [fallocate_of(c) for c in calls_on(image, calls, ('fallocate',))]


def offset_of(write):
    return int(write.args[3])


def change_of(call):
    """What a call does to the image, without descriptors and addresses."""
    if call.name in syscalls.WRITES:
        return call.name, offset_of(call), call.result
    return (call.name, *call.args[1:], call.error)


def changes(image, calls):
    return [change_of(c) for c in calls_on(image, calls, CHANGES)]


# ---- tests of a table ------------------------------------------------------

def each(*rows):
    """A test method for each row: its arguments, or the only one."""
    def mark(function):
        function.rows = [row if isinstance(row, tuple) else (row,)
                         for row in rows]
        return function
    return mark


def _row_test(function, row):
    def test(self):
        function(self, *row)
    return test


class ImageCase(unittest.TestCase):
    """A test of images; methods marked by each() become one per row."""

    def __init_subclass__(cls):
        super().__init_subclass__()
        for name in dir(cls):
            function = getattr(cls, name)
            rows = getattr(function, 'rows', None)
            if rows is None:
                continue
            setattr(cls, name, None)        # no test itself
            for row in rows:
                words = ', '.join(str(value) for value in row)
                setattr(cls, f'{name} ({words})', _row_test(function, row))

    def mount(self, name, **options):
        """Mount a target for the length of this test."""
        context = Target.mount(name, **options)
        target = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)
        return target

    def succeeds(self, command, **options):
        result = run(command, **options)
        if result.status != 0:
            self.fail(f'{" ".join(map(str, command))}: exit status '
                      f'{result.status}: {result.err}')
        return result

    def fails(self, command, *texts, **options):
        """The command ends with exit status 1 and says each of the texts."""
        result = run(command, **options)
        self.assertEqual(result.status, 1, result)
        for text in texts:
            self.assertIn(str(text), result.err)
        return result

    def calls_of(self, command, *faults, status=0):
        """The system calls of a command with that exit status."""
        result, calls = injected_calls(command, *faults)
        self.assertEqual(result.status, status, result)
        return calls

    def assertZeros(self, path, start, end):
        with open(path, 'rb') as file:
            file.seek(start)
            while start < end:
                data = file.read(min(MIB, end - start))
                self.assertTrue(data, f'{path} ends at {start}')
                if data.count(0) != len(data):
                    self.fail(f'{path}: not zero behind {start}')
                start += len(data)

    def assertAllocatedZeros(self, path, size, old=b''):
        """The image is the old data and zeros up to SIZE, all of it
        allocated."""
        self.assertEqual(os.stat(path).st_size, size)
        self.assertGreaterEqual(allocated(path), size)
        with open(path, 'rb') as file:
            self.assertTrue(file.read(len(old)) == old, 'old data changed')
        self.assertZeros(path, len(old), size)

    def assertUnchanged(self, path, data):
        """The file holds DATA and nothing more."""
        with open(path, 'rb') as file:
            self.assertTrue(file.read() == data,
                            f'{path} changed, length {os.stat(path).st_size},'
                            f' was {len(data)}')


class TargetCase(ImageCase):
    """Tests that share one mount of the target that the class names."""

    target = None
    options = {}

    @classmethod
    def setUpClass(cls):
        context = Target.mount(cls.target, **cls.options)
        cls.t = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def setUp(self):
        self.image = self.t.dir / 'image'
        self.addCleanup(self._remove_files)

    def _remove_files(self):
        for path in self.t.dir.iterdir():
            if path.is_file():
                path.unlink()


class FuseCase(TargetCase):
    """Tests on nofalloc-fs, each with the settings of its class."""

    target = 'fuse'
    # Undoes what tests set with control().
    DEFAULTS = {'fallocate': 'EOPNOTSUPP', 'refuse_o_direct': 0,
                'latency_us': 0, 'latency_ops': 'write', 'fail_write': 0,
                'short_write': 0, 'fail_fsync': 0, 'quota': 'none',
                'max_file_size': 'none'}
    FIXED_WHEN_MOUNTED = ('writeback', 'max_write', 'data')

    def setUp(self):
        super().setUp()
        settings = {**self.DEFAULTS, **self.options}
        self.t.control(**{key: value for key, value in settings.items()
                          if key not in self.FIXED_WHEN_MOUNTED})
        self.t.reset()

    def assertStats(self, **expected):
        stats = self.t.stats()
        self.assertEqual({key: stats[key] for key in expected}, expected)

    def assertWrittenOnce(self, start, end):
        """All of the range and nothing else was written, no byte twice."""
        self.assertStats(write_bytes=end - start, write_rewritten=0,
                         write_lowest_offset=start if end > start else 0,
                         write_highest_end=end if end > start else 0)

    def existing_image(self, size):
        """An image that the server has forgotten to have been written."""
        data = make_image(self.image, size)
        self.t.reset()
        return data


class BlockDeviceCase(ImageCase):
    """Tests on a loop device, which is no regular file."""

    SIZE = 8 * MIB

    def setUp(self):
        self.t = self.mount('tmpfs')
        self.backing = self.t.dir / 'backing'
        self.data = make_image(self.backing, self.SIZE)
        self.device = targets.run('losetup', '--find', '--show',
                                  self.backing).strip()
        self.addCleanup(targets.run, 'losetup', '--detach', self.device)

    def assertUntouched(self):
        subprocess.run(['sync', self.device], check=True)
        self.assertUnchanged(self.backing, self.data)


def old_data(size):
    """What an image held before: no byte of it is zero."""
    return (bytes(range(1, 256)) * (size // 255 + 1))[:size]


def make_image(path, size):
    """Make a file of SIZE bytes that reach the disk; returns the bytes."""
    data = old_data(size)
    with open(path, 'wb') as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return data


def main(needs_root=True):
    """Run the tests of the program; as root, in a namespace of its own."""
    for tool in (Qemu(variant).dir / tool for variant in ('stock', 'patched')
                 for tool in TOOLS):
        if not tool.exists():
            sys.exit(f'{tool}: not built; run scripts/build-qemu or set '
                     'QEMU_PREALLOC_BUILD to a directory with stock/ and '
                     'patched/')
    if needs_root and not targets.is_root():
        sys.exit(f'{sys.argv[0]}: mounts file systems, run it as root')
    targets.run_in_namespace()
    targets.check_built()
    try:
        tap_main()
    finally:
        targets.remove_workspace()
