# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the unittest cases of a program and print the result as TAP.

    from tap import main
    ...
    if __name__ == '__main__':
        main()

Exit status 1 if a test failed or if none ran (skipped ones did not run).
"""

import sys
import unittest


class TapResult(unittest.TestResult):
    """Prints a line for each test when it ends, diagnostics as comments."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream
        self.count = 0
        self.ran = 0
        self.problems = []

    def startTest(self, test):
        super().startTest(test)
        self.problems = []

    def stopTest(self, test):
        if not self._skipped(test):
            self.ran += 1
            self._line('not ok' if self.problems else 'ok', test)
        super().stopTest(test)

    def _skipped(self, test):
        return any(other is test for other, _ in self.skipped)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._line('ok', test, f' # SKIP {reason}')

    def addError(self, test, err):
        super().addError(test, err)
        self._problem(test, self.errors[-1][1])

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._problem(test, self.failures[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            reported = self.failures + self.errors
            text = next(t for s, t in reversed(reported) if s is subtest)
            self.problems.append(f'{subtest}\n{text}')

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        super().addUnexpectedSuccess(test)
        self.problems.append('passed, but is marked as an expected failure')

    def _problem(self, test, text):
        self.problems.append(text)
        if not isinstance(test, unittest.TestCase):
            # setUpClass and setUpModule fail outside any test.
            self._line('not ok', test)
            self.problems = []

    def _line(self, status, test, suffix=''):
        self.count += 1
        name = getattr(test, 'tap_name', None) or test.id()
        name = name.replace('__main__.', '').replace('#', ' ')
        print(f'{status} {self.count} - {name}{suffix}', file=self.stream)
        for line in '\n'.join(self.problems).splitlines():
            print(f'# {line}', file=self.stream)
        self.stream.flush()


def main(suite=None):
    """Run SUITE (by default the tests of the program), then exit."""
    if suite is None:
        suite = unittest.defaultTestLoader.loadTestsFromModule(
            sys.modules['__main__'])
    result = TapResult(sys.stdout)
    print('TAP version 13')
    suite.run(result)
    print(f'1..{result.count}')
    if result.wasSuccessful() and not result.ran:
        sys.exit('no tests ran')
    sys.exit(0 if result.wasSuccessful() else 1)
