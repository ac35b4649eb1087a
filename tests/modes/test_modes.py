#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Only what the series means to change differs between stock and patched.

Each cell of the mode matrix is a test. CHANGES says which ones differ, how
and why; all others must be equal, to the text of the messages.
"""
import os
import re
import sys
import unittest
from pathlib import Path
from typing import Callable, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.dont_write_bytecode = True

import cells  # noqa: E402
import table  # noqa: E402
from cells import (FILE, FUSE, NO_MODE, OLD_FORMATS, Outcome,  # noqa: E402
                   REPOSITORY, ROWS, targets)

sys.path.insert(0, str(REPOSITORY / 'tests' / 'lib'))
from tap import main as tap_main  # noqa: E402

BUILD = Path(os.environ.get('QEMU_PREALLOC_BUILD',
                            REPOSITORY / 'build' / 'qemu' / '7.2'))
PAGE_VERSION = '7.2'
PAGE = REPOSITORY / 'docs' / 'results' / 'modes.md'


# ---- what a changed cell has to be -----------------------------------------

def allocated(_matrix, _cell):
    return Outcome(True, 'allocated')


def as_falloc(matrix, cell):
    """What falloc does, which is as in stock; errors name the mode."""
    falloc = matrix.run(cell._replace(mode='falloc'))['patched']
    return falloc._replace(text=falloc.text.replace('falloc', 'auto'))


def refused_by_format(_matrix, cell):
    return Outcome(False, "image: Unsupported preallocation mode 'auto' for "
                   f"format '{cell.row.format}'", status=1)


# ---- the changes -----------------------------------------------------------

UNKNOWN = (r"invalid parameter value: auto$|Invalid preallocation mode 'auto'$"
           r"|Parameter 'preallocation' does not accept value 'auto'$")
SPARSE = '^sparse$'
UNALIGNED = '^Could not write zeros for preallocation: Invalid argument$'

CREATING = 'create', 'convert', 'blockdev-create'
GROWING = cells.GROWING
RAW = 'raw', 'raw, cache.direct=on', 'raw on filter preallocate'
DEVICES = 'raw on a block device', 'raw on NBD'
BACKED, BACKED_L2 = 'qcow2, backing file', 'qcow2, extended_l2, backing file'
QCOW2 = ('qcow2', 'qcow2, data_file', 'qcow2, data_file_raw',
         'qcow2, extended_l2')
HEADER = 'luks, detached header'
REFUSING = *OLD_FORMATS, 'vmdk, monolithicFlat'


class Change(NamedTuple):
    reason: str
    rows: tuple
    operations: tuple
    outcome: Callable
    mode: str = 'auto'
    stock: str = UNKNOWN            # stock's message, an expression
    targets: tuple = (FILE, FUSE)

    def has(self, cell):
        return (cell.row.name in self.rows and cell.mode == self.mode
                and cell.operation in self.operations
                and cell.target in self.targets)


CHANGES = [
    Change('auto allocates', (*RAW, *QCOW2, 'luks'), CREATING + GROWING,
           allocated),
    Change('auto allocates', (BACKED, BACKED_L2, HEADER), GROWING, allocated),
    Change('auto allocates', (BACKED_L2,), ('create', 'blockdev-create'),
           allocated),
    Change('auto allocates', (BACKED_L2,), ('convert',), allocated),
    *(Change('convert does not unmap zeros again', (BACKED_L2,), ('convert',),
             allocated, mode=mode, stock=SPARSE, targets=(FILE,))
      for mode in ('falloc', 'full')),
    Change('a backing file needs extended_l2', (BACKED,), CREATING,
           as_falloc),
    Change('create makes only the header', (HEADER,), ('create',),
           as_falloc),
    Change('auto allocates', (HEADER,), ('blockdev-create',), allocated),
    Change('auto needs what falloc needs', (*QCOW2, BACKED, BACKED_L2),
           ('measure',), as_falloc),
    Change('the format cannot preallocate', REFUSING, ('create',),
           refused_by_format),
    Change('convert writes all', REFUSING, ('convert',), allocated),
    Change('convert writes all', DEVICES, ('convert',), allocated),
    Change('the format cannot preallocate', REFUSING,
           GROWING + ('blockdev-create',), as_falloc),
    Change('there is nothing to allocate', DEVICES,
           ('create',) + GROWING, as_falloc),
    Change('full wrote from memory that was not aligned',
           ('raw, cache.direct=on',), GROWING, allocated, mode='full',
           stock=UNALIGNED, targets=(FILE,)),
]

# Files that an error changes in stock too
CHANGED_BY_STOCK = {
    # It writes the header before it looks at the mode for the payload.
    (HEADER, 'blockdev-create', 'metadata'): ('header',),
}


def change_of(cell):
    found = [change for change in CHANGES if change.has(cell)]
    if len(found) > 1:
        raise AssertionError(f'{cell.name()}: {found}')
    return found[0] if found else None


# ---- tests -----------------------------------------------------------------

class TestCell(unittest.TestCase):
    """One cell, with both builds."""

    def __init__(self, matrix, cell):
        super().__init__()
        self.matrix = matrix
        self.cell = cell
        self.change = change_of(cell)
        self.tap_name = cell.name()
        if self.change:
            self.tap_name += f' ({self.change.reason})'

    def runTest(self):
        both = self.matrix.run(self.cell)
        stock, patched = both['stock'], both['patched']
        if self.change:
            self.assertChanged(stock, patched)
        else:
            self.assertEqual(self.without_our_hint(patched), stock)
        self.assertEnds(patched)

    def assertChanged(self, stock, patched):
        self.assertEqual(stock.ok, self.change.stock == SPARSE, stock)
        self.assertRegex(stock.text, self.change.stock)
        self.assertEqual(self.without_our_hint(patched),
                         self.change.outcome(self.matrix, self.cell))
        self.assertEqual(patched.made, ())

    def assertEnds(self, outcome):
        """An error is one, and leaves what was there."""
        self.assertEqual(outcome.status, 0 if outcome.ok else 1, outcome)
        key = self.cell.row.name, self.cell.operation, self.cell.mode
        self.assertEqual(outcome.changed, CHANGED_BY_STOCK.get(key, ()))
        if self.cell.mode == NO_MODE and self.cell.operation != 'measure':
            self.assertEqual((outcome.ok, outcome.made), (False, ()))

    def without_our_hint(self, outcome):
        hint = re.compile(
            f"Preallocation mode '{self.cell.mode}' failed for '.*'\\.$")
        return outcome._replace(hints=tuple(
            line for line in outcome.hints if not hint.match(line)))

    def id(self):
        return self.tap_name


class TestTable(unittest.TestCase):
    """The table of changes itself."""

    def __init__(self, matrix, name):
        super().__init__(name)
        self.matrix = matrix

    def test_every_change_has_cells(self):
        here = {row.name for row in self.matrix.rows()}
        for change in CHANGES:
            if here.intersection(change.rows):
                self.assertTrue(any(map(change.has, self.matrix.cells())),
                                change)

    def test_no_row_is_left_out(self):
        version = self.matrix.builds['stock'].version
        self.assertEqual([row.name for row in self.matrix.rows()],
                         [row.name for row in ROWS if row.since <= version])

    def test_only_one_target_has_fallocate(self):
        probe = self.matrix.directories[FUSE] / 'probe'
        with self.assertRaisesRegex(targets.TargetError, 'not supported'):
            targets.run('fallocate', '--length', 4096, probe)
        targets.run('fallocate', '--length', 4096,
                    self.matrix.directories[FILE] / 'probe')


class TestPage(TestTable):
    """The page in docs/results, which shows PAGE_VERSION."""

    def test_page_is_what_mode_matrix_writes(self):
        new = table.markdown(self.matrix, '').splitlines()
        old = PAGE.read_text().splitlines()
        versions = 3                # that line may differ
        new[versions] = old[versions]
        self.assertEqual(new, old)


def main():
    if not targets.is_root():
        sys.exit(f'{sys.argv[0]}: uses a block device, run it as root')
    targets.run_in_namespace()
    try:
        with cells.matrix(BUILD) as matrix:
            suite = unittest.TestSuite(
                TestCell(matrix, cell) for cell in matrix.cells())
            case = TestPage if BUILD.name == PAGE_VERSION else TestTable
            suite.addTests(
                case(matrix, name) for name in
                unittest.defaultTestLoader.getTestCaseNames(case))
            tap_main(suite)
    except targets.TargetError as error:
        sys.exit(f'{sys.argv[0]}: {error}')
    finally:
        targets.remove_workspace()


if __name__ == '__main__':
    main()
