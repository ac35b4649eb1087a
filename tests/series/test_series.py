#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does the series fit the QEMU versions that are named as arguments?

For each of them: the series applies, its patches are complete and clean
by the tree's own rules, and nothing of ours is a copy of QEMU's code.
The sources come from scripts/fetch-qemu.
"""

import argparse
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / 'scripts'
sys.path[:0] = [str(ROOT / 'tests' / 'lib'), str(SCRIPTS / 'lib')]
sys.dont_write_bytecode = True

import tap  # noqa: E402
import series  # noqa: E402
import shared_lines  # noqa: E402

WIDEST = 76
# What an iotest has to print cannot hold a licence.
EXPECTED_OUTPUT = re.compile(r"WARNING: Does new file 'tests/qemu-iotests/"
                             r"\S+\.out' need 'SPDX-License-Identifier'\?$")
TESTER = {f'GIT_{role}_{what}': value for role in ('AUTHOR', 'COMMITTER')
          for what, value in (('NAME', 'tester'), ('EMAIL', 'tester@test'))}


def run(*command, cwd=None, stdin=None):
    """Run a command and return its output, raise if it fails."""
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, stdin=stdin, check=False,
        env=dict(os.environ, **TESTER), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, encoding='utf-8', errors='replace')
    if result.returncode:
        last = (result.stdout + result.stderr).strip().split('\n')[-20:]
        raise AssertionError('\n'.join(
            [f'{command[0]} failed, status {result.returncode}:', *last]))
    return result.stdout


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def remembered(function):
    """Like functools.cached_property, but remembers failures, too."""
    @functools.lru_cache(maxsize=None)
    def outcome(self):
        try:
            return function(self), None
        except Exception as error:  # whatever it is, every test shows it
            return None, error

    def get(self):
        value, error = outcome(self)
        if error:
            raise AssertionError(f'{function.__name__} of QEMU '
                                 f'{self.version}: {error}')
        return value
    return property(get)


class Version:
    """One QEMU version: its source, and a copy with the series on it."""

    def __init__(self, version):
        self.version = version
        self.scratch = Path(tempfile.mkdtemp(prefix='test-series-'))
        self.output = ''

    def close(self):
        shutil.rmtree(self.scratch, ignore_errors=True)

    @remembered
    def source(self):
        """The fetched source, which no test changes."""
        path = run(SCRIPTS / 'fetch-qemu', '--version', self.version,
                   '--print-dir').strip()
        expect(os.path.isdir(path), f'{path}: no such directory')
        return Path(path)

    @remembered
    def patched(self):
        """A git tree with the series on the branch prealloc."""
        tree = self.scratch / 'tree'
        print(f'# QEMU {self.version}: copying and importing the source',
              flush=True)
        run('cp', '-a', self.source, tree)
        self.output = run(SCRIPTS / 'integrate', tree)
        return tree

    @remembered
    def patches(self):
        """The commits as mail-ready patches, in order."""
        directory = self.scratch / 'patches'
        self.git('format-patch', '--quiet', '-o', directory,
                 'refs/prealloc/base..prealloc')
        return sorted(directory.iterdir())

    def patch_of(self, entry):
        """Return the patch of a series entry, by its subject."""
        subjects = self.git('log', '--reverse', '--format=%s',
                            'refs/prealloc/base..prealloc').split('\n')
        if f'{entry.subject} (not needed in this tree)' in self.output:
            raise unittest.SkipTest('not needed in this tree')
        expect(len(subjects) == len(self.patches), 'a patch is missing')
        return self.patches[subjects.index(entry.subject)]

    def git(self, *args):
        return run('git', '-C', self.patched, *args).strip()

    def check_out(self, commit):
        """Check out a commit detached, whatever a test left behind."""
        # Two -f: also what git am or patch left half done.
        self.git('reset', '--quiet', '--hard')
        self.git('clean', '--quiet', '-d', '-f', '-f')
        self.git('checkout', '--quiet', '--detach', commit)


# --- the tests of a version ------------------------------------------------

def test_fits(version):
    """integrate --check, as a user would try it on the source."""
    output = run(SCRIPTS / 'integrate', '--check', version.source)
    expect('the series applies' in output, output)


def test_twice(version):
    tree = version.patched
    before = times(tree)
    output = run(SCRIPTS / 'integrate', tree)
    expect('already integrated, nothing changed' in output, output)
    expect(times(tree) == before, 'files were written')
    expect(not version.git('status', '--porcelain'), 'tree is not clean')


def times(tree):
    """When each file outside .git was last written."""
    return {path: os.lstat(path).st_mtime_ns
            for path in shared_lines.files_below(tree)}


def test_am(version):
    """git am on the pristine source gives the identical tree."""
    version.check_out('refs/prealloc/base')
    version.git('am', '--quiet', *version.patches)
    expect_tree(version, 'HEAD^{tree}')
    version.check_out('prealloc')


def test_patch(version):
    """So does patch(1), which must not have to search or guess."""
    version.check_out('refs/prealloc/base')
    for path in version.patches:
        with path.open() as file:
            output = run('patch', '-p1', '--fuzz=0', stdin=file,
                         cwd=version.patched)
        expect('offset' not in output, output)
    version.git('add', '--all')
    expect_tree(version, version.git('write-tree'))
    version.check_out('prealloc')


def expect_tree(version, tree):
    difference = version.git('diff', '--stat', 'prealloc', tree)
    expect(not difference, difference)
    expect(version.git('rev-parse', tree)
           == version.git('rev-parse', 'prealloc^{tree}'), 'trees differ')


def test_checkpatch(version, entry):
    """The tree's own checkpatch finds nothing in the patch."""
    version.check_out('prealloc')
    output = run('perl', 'scripts/checkpatch.pl', '--no-signoff',
                 '--color=never', version.patch_of(entry),
                 cwd=version.patched)
    expect('total: 0 errors, ' in output, output)
    warnings = [line for line in output.split('\n')
                if line.startswith('WARNING: ')
                and not EXPECTED_OUTPUT.match(line)]
    expect(not warnings, output)


def test_shared_lines(version, lines):
    found = {}
    for ours, theirs, text in lines().shared_with(version.source):
        pair = (os.path.relpath(ours, ROOT),
                os.path.relpath(theirs, version.source))
        found.setdefault(pair, []).append(text)
    report = [f'{ours} and {theirs}, {len(texts)} times: {texts[0]}'
              for (ours, theirs), texts in found.items()]
    expect(not found, '\n'.join(['lines that QEMU has, too:',
                                 *report[:40]]))


def our_files():
    """The text of the licence is the only one that is not ours."""
    return [path for path in shared_lines.project_files(ROOT)
            if os.path.basename(path) != 'LICENSE']


# --- the tests of the entries ----------------------------------------------

def test_message(entry):
    for line in entry.message.split('\n'):
        expect(len(line) <= WIDEST, f'more than {WIDEST} columns: {line}')
    expect(re.match(r'[\w/., -]+: \S', entry.subject),
           f"subject is not 'area: what it does': {entry.subject}")
    expect(entry.message.count('\n') > 2, 'no body')


# --- putting them together -------------------------------------------------

class Test(unittest.FunctionTestCase):
    def __init__(self, name, function, *args):
        super().__init__(functools.partial(function, *args))
        self.tap_name = name


class VersionSuite(unittest.TestSuite):
    """Removes the copy of the source when its tests are done."""

    def __init__(self, version, tests):
        super().__init__(tests)
        self.version = version

    def run(self, result, debug=False):
        try:
            return super().run(result, debug)
        finally:
            self.version.close()


def version_suite(name, entries, lines):
    version = Version(name)
    tests = [
        Test(f'{name}: the series fits', test_fits, version),
        Test(f'{name}: integrating twice changes nothing', test_twice,
             version),
        Test(f'{name}: git am gives the same tree', test_am, version),
        Test(f'{name}: patch -p1 --fuzz=0 gives the same tree', test_patch,
             version),
        *(Test(f'{name}: checkpatch {entry.name}', test_checkpatch, version,
               entry) for entry in entries),
        Test(f'{name}: no lines shared with QEMU', test_shared_lines,
             version, lines),
    ]
    return VersionSuite(version, tests)


def interrupt(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('versions', metavar='VERSION', nargs='+')
    args = parser.parse_args()
    # A test runner's timeout has to clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, interrupt)
    entries = series.load(ROOT / 'series')
    lines = functools.lru_cache(maxsize=None)(
        lambda: shared_lines.Lines(our_files()))
    tests = [Test(f'message of {entry.name}', test_message, entry)
             for entry in entries]
    tests += [version_suite(version, entries, lines)
              for version in args.versions]
    tap.main(unittest.TestSuite(tests))


if __name__ == '__main__':
    main()
