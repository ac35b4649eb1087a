#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU's own unit tests of the block layer, built with the series.

  test_unit.py VERSION

They are built in build/qemu/VERSION/patched; all of them have to pass.
"""
import fcntl
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(REPOSITORY / 'tests' / 'lib'))

from tap import main as tap_main  # noqa: E402

BUILD = Path(os.environ.get('PREALLOC_BUILD', REPOSITORY / 'build')).resolve()
CACHE = Path(os.environ.get('QEMU_PREALLOC_CACHE')
             or Path.home() / '.cache' / 'qemu-prealloc')
PROGRAMS = ['test-block-backend', 'test-block-iothread', 'test-bdrv-drain',
            'test-bdrv-graph-mod', 'test-blockjob', 'test-blockjob-txn',
            'test-image-locking', 'test-replication']
TIMEOUT = 300           # seconds for one program
TAIL = 30               # lines of the output of one that failed


class Tree:
    """build/qemu/VERSION, as scripts/build-qemu leaves it."""

    def __init__(self, version):
        self.dir = BUILD / 'qemu' / version
        self.build = self.dir / 'patched'
        if not (self.dir / 'patched.built').exists():
            sys.exit(f'{self.build}: not built; run scripts/build-qemu')

    def environment(self):
        """What build-qemu builds with, so that its objects serve here."""
        environment = {
            **os.environ, 'CCACHE_DIR': str(CACHE / 'ccache'),
            'CCACHE_BASEDIR': str(self.dir), 'CCACHE_NOHASHDIR': '1',
            'PATH': f'/usr/lib/ccache:/usr/bin:/bin:{os.environ["PATH"]}',
            'LC_ALL': 'C.UTF-8'}
        meson = CACHE / 'meson' / 'usr' / 'lib' / 'python3' / 'dist-packages'
        if (self.build / 'pyvenv').exists() and meson.exists():
            environment['PYTHONPATH'] = str(meson)
        return environment

    def ninja(self):
        """Build the programs; no build-qemu meanwhile switches the tree."""
        with open(self.dir / 'lock', 'w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return subprocess.run(
                ['ninja', '-C', self.build,
                 *(f'tests/unit/{name}' for name in PROGRAMS)],
                env=self.environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                errors='replace')


class Build(unittest.TestCase):
    tap_name = 'build'

    def __init__(self, tree):
        super().__init__()
        self.tree = tree

    def runTest(self):
        result = self.tree.ninja()
        if result.returncode != 0:
            self.fail('\n'.join(result.stdout.splitlines()[-TAIL:]))


class Program(unittest.TestCase):
    def __init__(self, tree, name):
        super().__init__()
        self.program = tree.build / 'tests' / 'unit' / name
        self.tap_name = name

    def runTest(self):
        with tempfile.TemporaryDirectory(dir=self.program.parent) as directory:
            result = subprocess.run(
                [self.program, '--tap'], cwd=directory, timeout=TIMEOUT,
                env={**os.environ, 'TMPDIR': directory},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors='replace')
        lines = result.stdout.splitlines()
        tail = '\n'.join(lines[-TAIL:])
        self.assertEqual(result.returncode, 0, tail)
        self.assertTrue([line for line in lines if re.match(r'ok \d+', line)],
                        tail)
        self.assertEqual([line for line in lines if '# SKIP' in line], [])


def main():
    if len(sys.argv) != 2:
        sys.exit('usage: test_unit.py VERSION')
    tree = Tree(sys.argv[1])
    tap_main(unittest.TestSuite([Build(tree)] + [Program(tree, name)
                                                for name in PROGRAMS]))


if __name__ == '__main__':
    main()
