#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Do the files that the series changes compile without a warning?

Takes the compiler's options from the patched build of the QEMU version
that is named as argument (scripts/build-qemu), adds -Werror, and compiles
in memory: as built, for hosts without fallocate(2), and the gluster
driver, which is no part of our build, against libgfapi.
"""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))
sys.dont_write_bytecode = True

import tap  # noqa: E402

SERIES = 'refs/prealloc/base..prealloc'
# What QEMU's meson.build sets for libgfapi 7.6 and later
GLUSTER_ALWAYS = ('FTRUNCATE_HAS_STAT', 'IOCB_HAS_STAT')
GLUSTER_NEW = ('XLATOR_OPT', 'DISCARD', 'FALLOCATE', 'ZEROFILL')
# Takes fallocate(2) away from the configuration
NO_FALLOCATE = ''.join(f'#undef {name}\n' for name in (
    'CONFIG_FALLOCATE', 'CONFIG_FALLOCATE_PUNCH_HOLE',
    'CONFIG_FALLOCATE_ZERO_RANGE'))
POSIX_ONLY = NO_FALLOCATE
NEITHER = NO_FALLOCATE + '#undef CONFIG_POSIX_FALLOCATE\n'


def run(*command):
    result = subprocess.run([str(word) for word in command], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False)
    if result.returncode:
        raise AssertionError(f'{command[0]}: status {result.returncode}:\n'
                             + result.stdout)
    return result.stdout


class Build:
    """The patched build of a version."""

    def __init__(self, version):
        top = ROOT / 'build' / 'qemu' / version
        self.tree = top / 'tree'
        self.dir = top / 'patched'
        commands = json.loads(
            (self.dir / 'compile_commands.json').read_text())
        self.commands = {self.name(entry): entry for entry in commands}

    def name(self, entry):
        path = os.path.join(entry['directory'], entry['file'])
        return os.path.relpath(os.path.realpath(path), self.tree.resolve())

    def changed_files(self):
        """The C files of the series that this build compiles."""
        names = run('git', '-C', self.tree, 'diff', '--name-only',
                    *SERIES.split('..'), '--', '*.c').split()
        return [name for name in names if name in self.commands]

    def options(self, name):
        """How the file is compiled, without input and output."""
        words = shlex.split(self.commands[name]['command'])
        if os.path.basename(words[0]) == 'ccache':
            del words[0]
        for option in '-o', '-c', '-MF', '-MQ':
            at = words.index(option)
            del words[at:at + 2]
        return [word for word in words if word != '-MD']

    def compile(self, name, *more, like=None):
        os.chdir(self.dir)
        compiler, *options = self.options(like or name)
        run(compiler, *more, *options, '-Werror', '-fsyntax-only',
            self.tree / name)


def test_as_built(build, name):
    build.compile(name)


def compile_for(build, name, changes, *options, like=None):
    """Compile with lines added to the configuration of the host."""
    with tempfile.TemporaryDirectory() as directory:
        config = (build.dir / 'config-host.h').read_text()
        Path(directory, 'config-host.h').write_text(config + changes)
        build.compile(name, '-iquote', directory, *options, like=like)


def test_gluster(build, defined):
    """The driver is built only where libgfapi is found."""
    changes = ''
    for name in GLUSTER_ALWAYS + GLUSTER_NEW:
        changes += f'#undef CONFIG_GLUSTERFS_{name}\n'
        if name in defined:
            changes += f'#define CONFIG_GLUSTERFS_{name}\n'
    cflags = run('pkg-config', '--cflags', 'glusterfs-api').split()
    compile_for(build, 'block/gluster.c', changes, *cflags,
                like='block/file-posix.c')


class Test(unittest.FunctionTestCase):
    def __init__(self, name, function, *args):
        super().__init__(functools.partial(function, *args))
        self.tap_name = name


def tests_of(version):
    build = Build(version)
    files = build.changed_files()
    if 'block/file-prealloc.c' not in files:
        sys.exit(f'{build.tree}: not what scripts/integrate made')
    for name in files:
        yield Test(f'{version}: {name}', test_as_built, build, name)
    for name in 'block/file-posix.c', 'block/file-prealloc.c':
        yield Test(f'{version}: {name} with posix_fallocate only', compile_for,
                   build, name, POSIX_ONLY)
        yield Test(f'{version}: {name} without any fallocate', compile_for,
                   build, name, NEITHER)
    yield Test(f'{version}: block/gluster.c with all of libgfapi',
               test_gluster, build, GLUSTER_ALWAYS + GLUSTER_NEW)
    yield Test(f'{version}: block/gluster.c without fallocate and zerofill',
               test_gluster, build, GLUSTER_ALWAYS)


def main():
    if len(sys.argv) != 2 or not re.fullmatch(r'\d+\.\d+', sys.argv[1]):
        sys.exit(f'usage: {sys.argv[0]} VERSION')
    tap.main(unittest.TestSuite(tests_of(sys.argv[1])))


if __name__ == '__main__':
    main()
