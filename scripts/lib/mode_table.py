#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Compare stock and patched qemu-img, each mode once: the last step of
scripts/quickstart.

The target is a FUSE file system without fallocate(2) that takes 1 ms for a
request.  Every result is compared with what it should be.  The table goes to
the screen line by line, and as markdown to build/quickstart.md.
"""

import argparse
import os
import signal
import sys

sys.dont_write_bytecode = True

import measure  # noqa: E402
import targets  # noqa: E402
from measure import MIB, MODES, VARIANTS  # noqa: E402

LATENCY_US = 1000
# Seconds for a MiB: 256 one-byte writes of 1 ms, and what FUSE itself takes.
STOCK_FALLOC_SECONDS = 0.31
MARKDOWN = measure.ROOT / 'build' / 'quickstart.md'

COLUMNS = 'time', 'writes', 'MiB', 'alloc.'
WIDTHS = 8, 7, 6, 7              # of a terminal line of 80
HOW_WIDTH = 15


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition('\n')[0])
    parser.add_argument('--qemu', metavar='VERSION', required=True,
                        help='a directory of build/qemu')
    parser.add_argument('--size', metavar='MIB', type=int, default=64,
                        help='of the test image (default: 64)')
    args = parser.parse_args()
    if args.size < 1:
        parser.error('--size: at least 1')
    return args


class Comparison:
    """Runs everything on one target, with one test image."""

    def __init__(self, qemu, size, target, scratch):
        self.programs = {variant: measure.qemu_img(qemu, variant)
                         for variant in VARIANTS}
        # Also gets the programs into the page cache before the first run.
        self.versions = {measure.qemu_version(program)
                         for program in self.programs.values()}
        self.size = size
        self.target = target
        self.file = target.dir / 'image.raw'
        self.reference = {'create': scratch / 'zeros.raw',
                          'convert': scratch / 'source.raw'}
        measure.make_zeros(self.reference['create'], size)
        measure.make_source(self.reference['convert'], size)

    def run(self, variant, operation, mode):
        """Return the figures of a run, or the message that refused it."""
        words = measure.command(
            self.programs[variant], operation, mode, self.file,
            size=self.size, source=self.reference['convert'])
        try:
            figures = measure.measure(words, self.file, self.target)
        except measure.QemuImgFailed as error:
            if variant == 'stock' and mode == 'auto':
                return str(error)
            text = measure.printable(words)
            raise measure.Problem(f'{text}: {error}') from error
        self.check(operation)
        return figures

    def check(self, operation):
        # Reading need not be slow, it is not what is measured.
        self.target.control(latency_us=0)
        measure.check_content(self.programs['stock'],
                              self.reference[operation], self.file)
        self.target.control(latency_us=LATENCY_US)

    def row(self, operation, mode):
        how = measure.how_to(operation, mode)
        note(f'stock {how} ...')
        stock = self.run('stock', operation, mode)
        note(f'patched {how} ...')
        patched = self.run('patched', operation, mode)
        note('')
        return Row(operation, mode, stock, patched)


class Row:
    def __init__(self, operation, mode, stock, patched):
        self.name = f'{operation} {mode}'.replace('S0', '-S 0')
        self.how = measure.how_to(operation, mode)
        self.refused = None
        if isinstance(stock, str):
            # "qemu-img: FILE: ...: invalid parameter value: auto"
            self.refused = ': '.join(stock.split(': ')[-2:])
            self.stock = ['refused'] + [''] * (len(COLUMNS) - 1)
            self.ratio = ''
        else:
            self.stock = cells(stock)
            self.ratio = ratio(stock, patched)
        self.patched = cells(patched)

    def text(self):
        columns = zip(self.stock + self.patched + [self.ratio],
                      WIDTHS * 2 + (8,))
        line = self.name.ljust(HOW_WIDTH) + ''.join(
            cell.rjust(width) for cell, width in columns)
        return line.rstrip()

    def markdown(self):
        columns = [f'`{self.how}`', *self.stock, *self.patched, self.ratio]
        return '| ' + ' | '.join(columns) + ' |'


def cells(figures):
    return [f'{figures["seconds"]:.2f} s',
            str(figures['writes']),
            f'{figures["written"] / MIB:.1f}',
            f'{figures["allocated"] / MIB:.1f}']


def ratio(stock, patched):
    value = stock['seconds'] / patched['seconds']
    return f'{value:.0f}' if value >= 10 else f'{value:.1f}'


def text_header():
    group = ''.join(name.rjust(width)
                    for name, width in zip(COLUMNS, WIDTHS))
    titles = ''.join('  ' + f' {variant} '.center(sum(WIDTHS) - 2, '-')
                     for variant in VARIANTS)
    return (' ' * HOW_WIDTH + titles + 'stock/'.rjust(8) + '\n'
            + ' ' * HOW_WIDTH + group * 2 + 'patched'.rjust(8))


def markdown_header():
    names = [f'{variant}: {name}' for variant in VARIANTS
             for name in COLUMNS]
    names = ['`qemu-img` …'] + names + ['stock / patched']
    return ('| ' + ' | '.join(names) + ' |\n|---'
            + '|---:' * (len(names) - 1) + '|')


def note(text):
    """What is running now; gone when it is done."""
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)


def description(comparison):
    return [
        f'{", ".join(sorted(comparison.versions))}; raw images of '
        f'{comparison.size // MIB} MiB, '
        f'{measure.DATA_PERCENT} % of the source of convert is data',
        'target: FUSE without fallocate(2), '
        f'{LATENCY_US / 1000:g} ms for each read, write and fsync',
        'time: one run, up to the end of an fsync of the image; '
        f'{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}',
        'writes: requests that reach the target; MiB: what they carry',
        'alloc.: MiB that the image occupies in the end',
        'every image was compared with its source (convert) or with zeros '
        '(create): equal']


def compare_all(comparison):
    rows = []
    print(text_header(), flush=True)
    for operation, modes in MODES.items():
        for mode in modes:
            rows.append(comparison.row(operation, mode))
            print(rows[-1].text(), flush=True)
    reasons = {f'refused: "{row.refused}"' for row in rows if row.refused}
    notes = description(comparison) + sorted(reasons)
    print('\n' + '\n'.join(notes))
    MARKDOWN.write_text('\n'.join(
        [markdown_header()] + [row.markdown() for row in rows] + ['']
        + [f'- {line}' for line in notes]) + '\n')


def run(args):
    size = args.size * MIB
    seconds = STOCK_FALLOC_SECONDS * args.size
    print(f'Two of the runs, stock with falloc, take {seconds:.0f} s '
          'each, or more.\n', flush=True)
    with targets.Target.mount('fuse', latency_us=LATENCY_US) as target:
        scratch = targets.workspace().new_dir('images')
        compare_all(Comparison(args.qemu, size, target, scratch))


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    targets.run_in_namespace()
    try:
        run(args)
    except (measure.Problem, targets.TargetError, OSError) as error:
        note('')
        sys.exit(f'quickstart: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        targets.remove_workspace()


if __name__ == '__main__':
    main()
