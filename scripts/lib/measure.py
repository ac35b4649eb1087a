# SPDX-License-Identifier: GPL-2.0-or-later
"""One measured run of qemu-img, and what it needs: used by scripts/bench and
scripts/lib/mode_table.py."""

import os
import random
import re
import select
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
QEMU_BUILDS = ROOT / 'build' / 'qemu'
sys.path.insert(0, str(ROOT / 'tests' / 'targets'))

import targets  # noqa: E402

MIB = 1 << 20
VARIANTS = 'stock', 'patched'
MODES = {
    'create': ('off', 'falloc', 'full', 'auto'),
    'convert': ('off', 'falloc', 'full', 'auto', 'S0'),
}

DATA_PERCENT = 40
EXTENT = 256 << 10

MEMORY_SAMPLE_MS = 10
WRITE_CALLS = 'write,pwrite64,writev,pwritev,pwritev2'


class Problem(Exception):
    """Something that the user should read; no traceback."""


class QemuImgFailed(Problem):
    """qemu-img ended with an error; the message is its own."""


# --- qemu-img ---------------------------------------------------------------

def built_versions():
    return sorted(path.name for path in QEMU_BUILDS.glob('*')
                  if all((path / variant / 'qemu-img').exists()
                         for variant in VARIANTS))


def qemu_img(version, variant):
    path = QEMU_BUILDS / version / variant / 'qemu-img'
    if not path.exists():
        raise Problem(f'{path}: not built; run: scripts/build-qemu')
    return path


def qemu_version(program):
    return targets.run(program, '--version').splitlines()[0]


def how_to(operation, mode):
    """The arguments that make the difference, as a user types them."""
    if mode == 'S0':
        return f'{operation} -S 0'
    return f'{operation} -o preallocation={mode}'


def command(program, operation, mode, file, *, size, source, cache=None,
            fmt='raw'):
    words = [str(program), *how_to(operation, mode).split(), '-q']
    if operation == 'create':
        return words + ['-f', fmt, str(file), str(size)]
    if cache:
        words += ['-t', cache]
    return words + ['-f', 'raw', '-O', fmt, str(source), str(file)]


def check_content(judge, reference, file, fmt='raw'):
    """Compare with the source of convert, or with zeros after create."""
    result = subprocess.run(
        [judge, 'compare', '-f', 'raw', '-F', fmt, reference, file],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False)
    if result.returncode:
        raise Problem(f'{file} has not the right content: '
                      f'{result.stdout.strip()}')


# --- images -----------------------------------------------------------------

def make_source(path, size):
    """Random data in scattered extents, always the same; holes between."""
    rng = random.Random(size)
    extents = size // EXTENT
    with open(path, 'wb') as image:
        image.truncate(size)
        for extent in sorted(rng.sample(range(extents),
                                        extents * DATA_PERCENT // 100)):
            image.seek(extent * EXTENT)
            image.write(rng.randbytes(EXTENT))


def make_zeros(path, size):
    with open(path, 'wb') as image:
        image.truncate(size)


def start_clean(file):
    """No old file, and no writeback of an old one during the next run."""
    file.unlink(missing_ok=True)
    targets.run('sync', '--file-system', file.parent)


# --- one run ----------------------------------------------------------------

def _peak_memory(pid):
    """Bytes; 0 if the process has just ended.

    ru_maxrss is of no use: it starts with the memory of the process that
    called fork(), which is Python's.
    """
    try:
        status = Path(f'/proc/{pid}/status').read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    match = re.search(r'^VmHWM:\s*(\d+) kB', status, re.M)
    return int(match[1]) * 1024 if match else 0


def _wait(process):
    """Wait for the end of a process; return its resource use, peak memory."""
    peak = _peak_memory(process.pid)
    pidfd = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        while not poll.poll(MEMORY_SAMPLE_MS):
            peak = max(peak, _peak_memory(process.pid))
    finally:
        os.close(pidfd)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage, peak


def _run(words):
    with tempfile.TemporaryFile('w+') as errors:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL,
                                   stdout=errors, stderr=errors)
        try:
            usage, peak = _wait(process)
        except BaseException:
            process.kill()
            process.wait()
            raise
        if process.returncode:
            errors.seek(0)
            raise QemuImgFailed(errors.read().strip()
                                or f'exit status {process.returncode}')
    return usage, peak


def _sync(file):
    fd = os.open(file, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def measure(words, file, target=None):
    """Run a command that makes a file; the time includes an fsync() of it,
    as stock falloc leaves everything in the page cache.

    With a FUSE target the requests that reach it are counted.
    """
    start_clean(file)
    if target:
        target.reset()
    start = time.monotonic()
    usage, peak = _run(words)
    _sync(file)
    seconds = time.monotonic() - start
    run = {
        'seconds': seconds,
        'cpu_seconds': usage.ru_utime + usage.ru_stime,
        'peak_memory': peak,
        'allocated': targets.allocated(file),
    }
    if target:
        stats = target.stats()
        run['writes'] = stats['write']
        run['written'] = stats['write_bytes']
    else:
        # FUSE drops what it has cached at every open, fincore's too.
        run['cached'] = targets.fincore(file)
    return run


def count_writes(words, file):
    """Run a command under strace and count what it writes to a file."""
    start_clean(file)
    with tempfile.TemporaryDirectory() as scratch:
        # A log for each thread: no call is cut in two by another thread's.
        _run(['strace', '-ff', '-qq', '-s', '0', '-P', str(file),
              '-o', f'{scratch}/log', '-e', f'trace={WRITE_CALLS}', *words])
        returned = [int(value) for log in Path(scratch).iterdir()
                    for value in re.findall(r'^\w+\(.* = (\d+)$',
                                            log.read_text(), re.M)]
    return {'writes': len(returned), 'written': sum(returned)}


def printable(words):
    return shlex.join(str(word) for word in words).replace(f'{ROOT}/', '')
