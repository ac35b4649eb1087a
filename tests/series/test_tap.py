#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does tests/lib/tap.py report what happened, and fail when it should?"""

import subprocess
import sys
import unittest
from pathlib import Path

LIB = Path(__file__).resolve().parents[1] / 'lib'
sys.path.insert(0, str(LIB))
sys.dont_write_bytecode = True

from tap import main  # noqa: E402

PROGRAM = '''
import sys, unittest
sys.path.insert(0, {lib!r})
from tap import main
class Case(unittest.TestCase):
{body}
main()
'''


def run(*body):
    """Run a program with these lines in a test case."""
    text = PROGRAM.format(lib=str(LIB),
                          body='\n'.join('    ' + line for line in body))
    return subprocess.run([sys.executable, '-B', '-c', text], check=False,
                          capture_output=True, encoding='utf-8')


class Tap(unittest.TestCase):
    def expect(self, result, status, *lines):
        self.assertEqual(result.returncode, status, result)
        for line in lines:
            self.assertIn(line, result.stdout.splitlines())

    def test_success(self):
        self.expect(run('def test_a(self): pass'), 0,
                    'TAP version 13', 'ok 1 - Case.test_a', '1..1')

    def test_failure_and_success(self):
        result = run('def test_a(self): self.fail("be#cause")',
                     'def test_b(self): pass')
        self.expect(result, 1, 'not ok 1 - Case.test_a',
                    '# AssertionError: be#cause', 'ok 2 - Case.test_b',
                    '1..2')

    def test_error(self):
        self.expect(run('def test_a(self): 1 / 0'), 1,
                    'not ok 1 - Case.test_a',
                    '# ZeroDivisionError: division by zero')

    def test_failed_subtest(self):
        result = run('def test_a(self):',
                     '    with self.subTest(n=1): self.fail("one")',
                     '    with self.subTest(n=2): pass')
        self.expect(result, 1, 'not ok 1 - Case.test_a',
                    '# AssertionError: one', '1..1')

    def test_failed_class_setup(self):
        result = run('@classmethod',
                     'def setUpClass(cls): raise OSError("early")',
                     'def test_a(self): pass')
        self.expect(result, 1, 'not ok 1 - setUpClass (Case)',
                    '# OSError: early', '1..1')

    def test_failed_cleanup_of_a_skipped_test(self):
        result = run('def test_a(self):',
                     '    self.addCleanup(lambda: 1 / 0)',
                     '    self.skipTest("no disk")',
                     'def test_b(self): pass')
        self.expect(result, 1)

    def test_skip(self):
        result = run('def test_a(self): self.skipTest("no disk")',
                     'def test_b(self): pass')
        self.expect(result, 0, 'ok 1 - Case.test_a # SKIP no disk',
                    'ok 2 - Case.test_b', '1..2')

    def test_only_skips_fail(self):
        self.expect(run('def test_a(self): self.skipTest("no disk")'), 1)

    def test_no_tests_fail(self):
        self.expect(run('pass'), 1, '1..0')

    def test_unexpected_success(self):
        result = run('@unittest.expectedFailure', 'def test_a(self): pass')
        self.expect(result, 1, 'not ok 1 - Case.test_a')


if __name__ == '__main__':
    main()
