# SPDX-License-Identifier: GPL-2.0-or-later
"""Run QEMU's tests/qemu-iotests/check with the tools of one of our builds.

The tests come from the git branch that the build was made of, copied to the
test target's working directory: neither a checkout of the other branch nor
what a test writes beside itself can then disturb.
"""
import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path[:0] = [str(REPOSITORY / name)
                for name in ('tests/lib', 'tests/targets', 'scripts/lib')]

import targets  # noqa: E402

BUILD = Path(os.environ.get('PREALLOC_BUILD', REPOSITORY / 'build')).resolve()
LOGS = BUILD / 'peer'
BRANCHES = {'stock': 'pristine', 'patched': 'prealloc'}
TOOLS = {'QEMU_IMG_PROG': 'qemu-img', 'QEMU_IO_PROG': 'qemu-io',
         'QEMU_NBD_PROG': 'qemu-nbd',
         'QSD_PROG': 'storage-daemon/qemu-storage-daemon'}
JOBS = 2
TIMEOUT = 1500          # seconds that a run of check may take

# What has nothing to do with preallocation, and is tried again.
CHANCE = [
    # QEMU measures how fast it derives LUKS keys, by a clock that some
    # kernels advance too seldom.
    'Unable to get accurate CPU usage',
    # The emulator, which has no patch of ours, tells twice of a job that it
    # is ready, and 274 may be late with its second answer.
    "in state 'concluded' cannot accept command verb 'complete'",
]
ATTEMPTS = 10


class Result(NamedTuple):
    status: str                 # as check says: pass, fail, not run
    description: str = ''
    diff: str = ''


NO_RESULT = Result('no result', 'check ended without one')


def results_file(version, target):
    """What a run with stock and patched found, for the report."""
    return LOGS / 'results' / f'{version}-{target}.json'


# ---- namespace -------------------------------------------------------------

def enter_namespace():
    """Go on in namespaces of our own, below a process that collects orphans.

    Many tests start daemons and wait until the kernel knows them no more;
    their new parent has to take note of their end.
    """
    if not targets.is_root():
        sys.exit(f'{sys.argv[0]}: mounts file systems, run it as root')
    targets.run_in_namespace()
    if os.getpid() != 1:
        sys.exit(f'{sys.argv[0]}: {targets.IN_NAMESPACE} is set already')
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def end_leftovers():
    """End what tests have left running; only ours is in the namespace."""
    assert os.environ.get(targets.IN_NAMESPACE) and os.getppid() == 1
    for path in Path('/proc').glob('[0-9]*'):
        pid = int(path.name)
        with contextlib.suppress(ProcessLookupError):
            if pid not in (1, os.getpid()):
                os.kill(pid, signal.SIGKILL)


def private_directory():
    """A directory with a short name that only this namespace sees.

    The names of sockets are limited to 107 bytes, and what an ended test
    leaves in its temporary directory is to go with the namespace.
    """
    path = Path('/mnt')
    if path in BUILD.parents:
        path = Path('/media')
    targets.run('mount', '-t', 'tmpfs', 'peer', path)
    return path


# ---- builds ----------------------------------------------------------------

@functools.lru_cache()
def emulator():
    result = subprocess.run([HERE / 'fetch-emulator'], text=True,
                            stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        sys.exit('no emulator to run the iotests with')
    return result.stdout.strip()


class Qemu:
    """One of our builds, and the tests that belong to it."""

    def __init__(self, version, variant, work):
        self.variant = variant
        self.dir = BUILD / 'qemu' / version / variant
        self.source = work / variant / 'source'
        self.iotests = work / variant / 'tests' / 'qemu-iotests'
        self.check_built()
        self.copy_tests()

    def check_built(self):
        for tool in TOOLS.values():
            if not (self.dir / tool).exists():
                sys.exit(f'{self.dir / tool}: not built; run '
                         'scripts/build-qemu')

    def copy_tests(self):
        self.source.mkdir(parents=True)
        archive = subprocess.Popen(
            ['git', '-C', self.dir.parent / 'tree', 'archive',
             BRANCHES[self.variant], 'tests/qemu-iotests', 'python'],
            stdout=subprocess.PIPE)
        subprocess.run(['tar', '-x', '-C', self.source],
                       stdin=archive.stdout, check=True)
        if archive.wait() != 0:
            sys.exit(f'{self.dir.parent}/tree: cannot read its tests')
        # check takes the directory of this link for that of the build.
        self.iotests.mkdir(parents=True)
        (self.iotests / 'check').symlink_to(
            self.source / 'tests' / 'qemu-iotests' / 'check')

    def python(self):
        """Since 8.1 configure makes an environment with what tests need."""
        own = self.dir / 'pyvenv' / 'bin' / 'python3'
        return own if own.exists() else Path('/usr/bin/python3')

    def test_file(self, name):
        """Where a test is, or None if this tree has no such test."""
        source = self.source / 'tests' / 'qemu-iotests'
        for path in (source / name, source / 'tests' / name):
            if path.exists():
                return path
        return None


# ---- check -----------------------------------------------------------------

class Check:
    """A run of check; results can be asked for while it goes on."""

    LINE = re.compile(r'^(\S+) +(pass|fail|not run) +\[.*?\] \[.*?\] *'
                      r'(?:[\d.]+s|\.\.\.) *(?:\(last: [\d.]+s\))? *(.*)$')
    DIFF = re.compile(r'^--- (\S+)\n\+\+\+ (\S+)\.out\.bad\n'
                      r'(?:(?!--- \S+\n\+\+\+ )[-+ @].*\n|\n)*', re.M)

    def __init__(self, qemu, fmt, names, test_dir, private, log):
        self.results = {}
        self.test_dir = test_dir
        self.sock_dir = private / 'sock'
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        for directory in (self.test_dir, self.sock_dir, private / 'tmp'):
            directory.mkdir(exist_ok=True)
        environment = {
            **os.environ, 'QEMU_PROG': emulator(),
            'TEST_DIR': str(test_dir), 'SOCK_DIR': str(self.sock_dir),
            'TMPDIR': str(private / 'tmp'),
            **{key: str(qemu.dir / tool) for key, tool in TOOLS.items()}}
        self.process = subprocess.Popen(
            [qemu.python(), 'check', f'-{fmt}', '-j', str(JOBS), *names],
            cwd=qemu.iotests, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors='replace', start_new_session=True)
        self.timer = threading.Timer(TIMEOUT, os.killpg,
                                     (self.process.pid, signal.SIGKILL))
        self.timer.daemon = True
        self.timer.start()
        self.output = []

    def read_line(self):
        """Take in a line of check's output; False at its end."""
        line = self.process.stdout.readline()
        self.output.append(line)
        match = self.LINE.match(line)
        if match:
            self.results[match[1]] = Result(
                match[2], match[3].partition(' (see ')[0].strip())
        return line != ''

    def result(self, name):
        while name not in self.results and self.read_line():
            pass
        return self.results.get(name, NO_RESULT)

    def finish(self):
        """Wait for the end; the results, with what differed."""
        while self.read_line():
            pass
        self.process.wait()
        self.timer.cancel()
        end_leftovers()
        text = ''.join(self.output)
        with open(self.log, 'a') as log:
            log.write(text)
        for match in self.DIFF.finditer(text):
            name = Path(match[2]).name
            if name in self.results:
                self.results[name] = self.results[name]._replace(
                    diff=match[0])
        for directory in (self.test_dir, self.sock_dir):
            shutil.rmtree(directory)
        return self.results


class Run:
    """Tests of one format with one build; results as from Check."""

    def __init__(self, start, names):
        self.start = start              # takes names, returns a Check
        self.names = names
        self.check = None
        self.results = None

    def result(self, name):
        """A success is known at once, the rest (and the last, so that check
        is waited for) when all have run."""
        if self.results is None:
            self.check = self.check or self.start(self.names)
            result = self.check.result(name)
            if result.status == 'pass' and name != self.names[-1]:
                return result
        return self.all_results().get(name, NO_RESULT)

    def all_results(self):
        if self.results is None:
            check = self.check or self.start(self.names)
            self.results = check.finish()
            self.repeat()
        return self.results

    def repeat(self):
        for _ in range(ATTEMPTS):
            names = [name for name, result in self.results.items()
                     if any(text in result.description + result.diff
                            for text in CHANCE)]
            if not names:
                return
            self.results.update(self.start(names).finish())
