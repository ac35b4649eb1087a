#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""QEMU's own iotests, with the patched tools, on a file system.

  test_iotests.py [--subset] [--both] VERSION TARGET

A test passes if it passes with the patched tools. What does not is run with
stock too, same version, same target: a test that fails there may fail, one
that cannot run there may be left out if lists.py names what it says.
With --both stock runs everything, and the results are kept for the report.
"""
import argparse
import json
import unittest

import iotests
import lists
import targets
from source_state import source_hash
from tap import main as tap_main

# Some tests write half a GiB, and two run at a time.
TARGET_MIB = 2048


def verdict(patched, stock, said):
    """Whether a test counts as passed, and why if there is more to say.

    SAID is what lists.NOT_RUN has for it, or None.
    """
    if patched.status == 'pass':
        return True, '' if stock is None or stock.status == 'pass' \
            else f'{stock.status} on stock: {stock.description}'
    both = f'{patched.description}; on stock: ' \
        f'{stock.status}: {stock.description}'
    if patched.status != stock.status or patched.status == 'no result':
        return False, f'{patched.status}: {both}'
    if patched.status == 'fail':
        return True, f'fails on stock too: {stock.description}'
    if said is None:
        return False, f'not run, and lists.py does not know why: {both}'
    if said not in patched.description or said not in stock.description:
        return False, f'not run, but lists.py knows another reason: {both}'
    return True, f'not run, as on stock: {said}'


class Format:
    """All tests of a format on one target."""

    def __init__(self, fmt, names, qemus, start, both):
        self.fmt = fmt
        self.names = names
        self.both = both
        self.start = start
        self.stock_qemu = qemus['stock']
        self.patched = iotests.Run(
            lambda tests: start(qemus['patched'], fmt, tests), names)
        self.stock = None

    def run_stock(self):
        """With --both everything, else what did not pass patched; without
        the tests that only the series has."""
        results = self.patched.all_results()
        names = [name for name in self.names
                 if self.stock_qemu.test_file(name) and (
                     self.both or name not in results
                     or results[name].status != 'pass')]
        self.stock = iotests.Run(
            lambda tests: self.start(self.stock_qemu, self.fmt, tests), names)
        if names:
            self.stock.all_results()
        else:
            self.stock.results = {}

    def outcomes(self, name):
        """Results with the patched tools and with stock, if that has run."""
        patched = self.patched.result(name)
        if patched.status == 'pass' and not self.both:
            return patched, None
        if self.stock is None:
            self.run_stock()
        return patched, self.stock.result(name)


class Iotest(unittest.TestCase):
    """A line of the output."""

    def __init__(self, formats, name):
        super().__init__()
        self.formats = formats
        self.name = name
        self.tap_name = f'{formats.fmt} {name}'

    def runTest(self):
        patched, stock = self.formats.outcomes(self.name)
        said = lists.NOT_RUN.get((self.formats.fmt, self.name))
        passed, remark = verdict(patched, stock, said)
        if remark:
            self.tap_name += f' ({remark})'
        if not passed:
            self.fail(patched.diff or remark)


class Ours(unittest.TestCase):
    """A test that the series adds, but that no format can run."""

    def __init__(self, name):
        super().__init__()
        self.tap_name = name

    def runTest(self):
        self.fail('is not in the patched tree (scripts/build-qemu), or '
                  'supports none of: ' + ' '.join(lists.LISTS))


def tests_of_formats(args, qemus):
    """{format: names}, and the names of ours that are in none."""
    found = {fmt: lists.names_of(fmt, args.subset) for fmt in lists.LISTS}
    homeless = []
    for name in lists.ours():
        path = qemus['patched'].test_file(name)
        formats = [fmt for fmt in found
                   if path and lists.supports(path.read_text(), fmt)]
        for fmt in formats:
            found[fmt].append(name)
        if not formats:
            homeless.append(name)
    return {fmt: names for fmt, names in found.items() if names}, homeless


def keep_results(args, formats):
    """For test_report.py."""
    kept = {f.fmt: {name: [result[:2] for result in reversed(f.outcomes(name))]
                    for name in f.names} for f in formats}
    path = iotests.results_file(args.version, args.target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({'source': source_hash(),
                                'formats': kept}, indent=1))


def run_all(args, target, private):
    for log in iotests.LOGS.glob(f'{args.version}-{args.target}-*.log'):
        log.unlink()
    work = targets.workspace().new_dir('tests')
    qemus = {variant: iotests.Qemu(args.version, variant, work)
             for variant in iotests.BRANCHES}

    def start(qemu, fmt, names):
        log = iotests.LOGS / (f'{args.version}-{args.target}-{fmt}-'
                              f'{qemu.variant}.log')
        return iotests.Check(qemu, fmt, names, target.dir / 'test', private,
                             log)

    found, homeless = tests_of_formats(args, qemus)
    formats = [Format(fmt, names, qemus, start, args.both)
               for fmt, names in found.items()]
    suite = unittest.TestSuite(
        [Iotest(f, name) for f in formats for name in f.names]
        + [Ours(name) for name in homeless])
    try:
        tap_main(suite)
    except SystemExit:
        if args.both:
            keep_results(args, formats)
        raise


def parse_args():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--subset', action='store_true',
                        help='only the tests of allocation and length')
    parser.add_argument('--both', action='store_true',
                        help='run everything with stock too')
    parser.add_argument('version', help='a build below build/qemu')
    parser.add_argument('target', choices=sorted(targets.LOOP_TARGETS))
    return parser.parse_args()


def main():
    args = parse_args()
    iotests.enter_namespace()
    try:
        private = iotests.private_directory()
        with targets.Target.mount(args.target,
                                  size_mib=TARGET_MIB) as target:
            run_all(args, target, private)
    finally:
        targets.remove_workspace()


if __name__ == '__main__':
    main()
