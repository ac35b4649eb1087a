#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Sum up what test_iotests.py --both has kept, as a table in docs/results.

  test_report.py FILE VERSION... TARGET...

Fails, and writes nothing, unless there is a result of every version on every
target, made from the source as it is now.
"""
import datetime
import json
import os
import sys
import unittest
from collections import Counter
from pathlib import Path

import iotests
import lists
import targets
from source_state import source_hash
from tap import main as tap_main


def read_results(version, target):
    path = iotests.results_file(version, target)
    return json.loads(path.read_text()) if path.exists() else None


def outcome(stock, patched):
    """The column that a test counts in."""
    if patched[0] == stock[0]:
        return {'pass': 'passed', 'fail': 'failed like stock',
                'not run': 'not run like stock'}.get(patched[0], 'broken')
    if patched[0] == 'pass':
        return 'passed, not on stock'
    return 'broken'


COLUMNS = ['passed', 'passed, not on stock', 'failed like stock',
           'not run like stock', 'broken']


def counts(found):
    yield '| QEMU | target | format | ' + ' | '.join(COLUMNS) + ' |'
    yield '|---|---|---|' + '---:|' * len(COLUMNS)
    for (version, target), results in found.items():
        for fmt, tests in results['formats'].items():
            count = Counter(outcome(*pair) for pair in tests.values())
            numbers = ' | '.join(str(count[name]) for name in COLUMNS)
            yield f'| {version} | {target} | {fmt} | {numbers} |'


def remarks(found):
    """Tests that did not just pass on both, and what check says of them."""
    yield '| QEMU | target | format | test | | stock says |'
    yield '|---|---|---|---|---|---|'
    for (version, target), results in found.items():
        for fmt, tests in results['formats'].items():
            for name, (stock, patched) in tests.items():
                kind = outcome(stock, patched)
                if kind == 'passed':
                    continue
                says = stock[1].replace('|', '/')
                yield (f'| {version} | {target} | {fmt} | {name} | {kind} '
                       f'| {stock[0]}: {says} |')


def report(found):
    return '\n'.join([
        '<!-- SPDX-License-Identifier: GPL-2.0-or-later -->',
        "# QEMU's own iotests, stock and patched", '',
        'Made by `scripts/check --full`, suite iotests-all.',
        f'{datetime.date.today()}, Linux {os.uname().release}, '
        f'{os.cpu_count()} processors.',
        f'Source: {source_hash()} '
        '(`git ls-files -s -- . ":!docs/results" | git hash-object --stdin`)',
        '', '"Passed, not on stock" is what the series adds, or has mended. '
        '"Broken" passes on stock only.', '',
        *counts(found), '', '## All that did not pass with both', '',
        *remarks(found), ''])


class Present(unittest.TestCase):
    """The results of one version on one target."""

    def __init__(self, version, target, results):
        super().__init__()
        self.tap_name = f'{version} {target}'
        self.results = results

    def runTest(self):
        self.assertIsNotNone(self.results, 'test_iotests.py --both has kept '
                             'no results')
        self.assertEqual(self.results['source'], source_hash(),
                         'results of another source')
        missing = set(lists.LISTS) - set(self.results['formats'])
        self.assertFalse(missing, 'formats without results')


class Report(unittest.TestCase):
    def __init__(self, path, found, present):
        super().__init__()
        self.tap_name = f'written: {path}'
        self.path = path
        self.found = found
        self.present = present

    def runTest(self):
        for test in self.present:
            test.runTest()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(report(self.found))


def main():
    if len(sys.argv) < 4:
        sys.exit('usage: test_report.py FILE VERSION... TARGET...')
    path, words = Path(sys.argv[1]), sys.argv[2:]
    found = {(version, target): read_results(version, target)
             for version in words if version not in targets.LOOP_TARGETS
             for target in words if target in targets.LOOP_TARGETS}
    present = [Present(*key, results) for key, results in found.items()]
    tap_main(unittest.TestSuite(present + [Report(path, found, present)]))


if __name__ == '__main__':
    main()
