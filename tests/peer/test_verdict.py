#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""What the peer suite lets pass, and what it must not."""
import tempfile
import unittest
from pathlib import Path

import iotests
import lists
from iotests import NO_RESULT, Result
from tap import main as tap_main
from test_iotests import verdict

PASS = Result('pass')
FAIL = Result('fail', 'output mismatch')
NOT_RUN = Result('not run', 'no sudo here')

# What check prints, with two jobs: the lines come in any order.
OUTPUT = '''\
QEMU          -- "qemu-system-x86_64" -nodefaults
106   started    [22:23:32]              ...                  \
\n175   started    [22:23:32]              ...                  \
\n175   fail       [22:23:32] [22:24:05]   32.5s  (last: 3.1s)  \
output mismatch (see /t/175/175.out.bad)
106   fail       [22:23:32] [22:24:36]   31.2s                \
output mismatch (see /t/106/106.out.bad)
149   not run    [22:29:28] [22:29:37]   ...                  no sudo here
--- /source/106.out
+++ /t/106/106.out.bad
@@ -1,2 +1,2 @@
 same
-old
+new
--- /source/175.out
+++ /t/175/175.out.bad
@@ -1 +1 @@
-5
+6
Not run: 149
'''


class Verdict(unittest.TestCase):
    def assertPasses(self, *args):
        self.assertTrue(verdict(*args)[0])

    def assertFails(self, *args):
        self.assertFalse(verdict(*args)[0])

    def test_pass(self):
        self.assertEqual(verdict(PASS, None, None), (True, ''))
        self.assertPasses(PASS, PASS, None)
        self.assertPasses(PASS, FAIL, None)

    def test_failure_counts_unless_stock_fails(self):
        for stock in (PASS, NOT_RUN, NO_RESULT):
            self.assertFails(FAIL, stock, None)
            self.assertFails(FAIL, stock, 'no sudo here')
        passed, remark = verdict(FAIL, FAIL, None)
        self.assertTrue(passed)
        self.assertIn('fails on stock too', remark)

    def test_not_run_counts_unless_known_and_the_same_on_stock(self):
        for stock in (PASS, FAIL, NO_RESULT,
                      Result('not run', 'something else')):
            self.assertFails(NOT_RUN, stock, 'no sudo here')
        self.assertFails(NOT_RUN, NOT_RUN, None)
        self.assertFails(NOT_RUN, NOT_RUN, 'something else')
        self.assertPasses(NOT_RUN, NOT_RUN, 'no sudo')

    def test_no_result_is_a_failure(self):
        for stock in (PASS, FAIL, NOT_RUN, NO_RESULT):
            self.assertFails(NO_RESULT, stock, None)


class Output(unittest.TestCase):
    """How the output of check is read; sh plays check."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.dir = Path(directory.name)
        (self.dir / 'output').write_text(OUTPUT)
        (self.dir / 'check').write_text(f'cat {self.dir}/output\n')
        for name in ('emulator', 'end_leftovers'):
            original = getattr(iotests, name)
            self.addCleanup(setattr, iotests, name, original)
            setattr(iotests, name, lambda: '')

    def check(self):
        class Sh:
            iotests = self.dir
            dir = self.dir

            @staticmethod
            def python():
                return 'sh'
        return iotests.Check(Sh, 'raw', ['106', '149', '175'],
                             self.dir / 'test', self.dir, self.dir / 'log')

    def test_results(self):
        check = self.check()
        self.assertEqual(check.result('175').status, 'fail')
        results = check.finish()
        self.assertEqual(set(results), {'106', '149', '175'})
        self.assertEqual(results['149'], NOT_RUN)
        self.assertEqual(results['106'].status, 'fail')
        self.assertIn('\n-old\n+new\n', results['106'].diff)
        self.assertNotIn('175', results['106'].diff)
        self.assertTrue(results['175'].diff.endswith('\n-5\n+6\n'))
        self.assertEqual((self.dir / 'log').read_text(), OUTPUT)

    def test_no_result(self):
        check = self.check()
        self.assertEqual(check.result('033'), NO_RESULT)
        self.assertNotIn('033', check.finish())

    def test_repeats_what_chance_failed(self):
        rest = [[Result('not run', text)] for text in iotests.CHANCE] \
            + [[FAIL]]
        started = []

        class Fake:
            def __init__(self, names):
                started.append(names)

            @staticmethod
            def result(name):
                return NO_RESULT

            @staticmethod
            def finish():
                return {'210': rest.pop(0)[0]}

        run = iotests.Run(Fake, ['210', '106'])
        self.assertEqual(run.result('210'), FAIL)
        self.assertEqual(started, [['210', '106'], ['210'], ['210']])


class Formats(unittest.TestCase):
    """Which formats a test says that it is for."""

    def assertFormats(self, text, *expected):
        self.assertEqual([fmt for fmt in lists.LISTS
                          if lists.supports(text, fmt)], list(expected))

    def test_shell(self):
        self.assertFormats('_supported_fmt raw qcow2\n_supported_os Linux\n',
                           'raw', 'qcow2')
        self.assertFormats('_supported_fmt generic\n_unsupported_fmt luks\n',
                           'raw', 'qcow2')
        self.assertFormats('_unsupported_fmt raw\n', 'qcow2', 'luks')

    def test_python(self):
        self.assertFormats("main(supported_fmts=['raw',\n  'luks'],\n"
                           "  supported_protocols=['qcow2'])", 'raw', 'luks')
        self.assertFormats("main(unsupported_fmts=['raw'])", 'qcow2', 'luks')

    def test_ours_are_the_scripts_of_the_series(self):
        with tempfile.TemporaryDirectory() as directory:
            entry = Path(directory) / '01-some'
            entry.mkdir()
            (entry / 'files').write_text(
                'block/some.c\n\n'
                'tests/qemu-iotests/tests/some-test\n'
                'tests/qemu-iotests/tests/some-test.out\n'
                'tests/x/y tests/qemu-iotests/tests/other\n')
            self.addCleanup(setattr, lists, 'SERIES', lists.SERIES)
            lists.SERIES = Path(directory)
            self.assertEqual(lists.ours(), ['some-test', 'other'])


if __name__ == '__main__':
    tap_main()
