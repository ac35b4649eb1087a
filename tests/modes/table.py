# SPDX-License-Identifier: GPL-2.0-or-later
"""The mode matrix as markdown: what scripts/mode-matrix writes."""
import re

from cells import (DATA, FILE, FUSE, MIB, MODES, NO_MODE, OLD_SIZE,
                   OPERATIONS, ROWS, SIZE, Cell)

TITLES = {
    'create': '`qemu-img create -o preallocation=MODE`',
    'resize': '`qemu-img resize --preallocation=MODE`',
    'truncate': '`qemu-io -c "truncate -m MODE SIZE"`',
    'convert': '`qemu-img convert -o preallocation=MODE`',
    'blockdev-create': "QMP `blockdev-create`, where the format's options "
                       'have `preallocation`',
    'measure': '`qemu-img measure -o preallocation=MODE --size SIZE`: '
               'the required size',
}
# What says only where it happened
PREFIX = re.compile(r'^(image|header|DEVICE|nbd\+unix:\S*): '
                    r'(error while converting \w+: )?')
INTRODUCTION = '''\
What each mode comes to, by format or driver. A cell shows the patched \
result; only where stock QEMU does something else, it is **bold** with \
stock's result beside it. `{no_mode}` is a mode that does not exist.

- allocated: the image takes at least its size of the disk (a resized one: \
what it grew by); sparse: less
- error N: refused with message N of the list at the end (there without \
the name of the image and "error while converting"), exit status 1
- new images are of {size} MiB; resize and truncate grow {old} MiB by \
{size} MiB; {percent} % of what is converted is data, in one piece; the \
backing file is empty; a served file or device is sparse before
- every image was compared with its source or with zeros: equal (luks: \
only what was written)
- everything was done on a file system with fallocate(2) and on one \
without; where the results differ, both are shown'''


class Messages:
    """The distinct messages, numbered as they appear."""

    def __init__(self):
        self.numbers = {}

    def number(self, cell, text):
        text = PREFIX.sub('', text)
        text = re.sub(rf"(['\s]){cell.mode}('|$)", r'\1MODE\2', text)
        text = text.replace(f"'{cell.row.format}'", "'FORMAT'")
        return self.numbers.setdefault(text, len(self.numbers) + 1)

    def lines(self):
        return [f'{number}. `{text}`'
                for text, number in self.numbers.items()]


def _result(outcome, cell, messages):
    if not outcome.ok:
        number = messages.number(cell, outcome.text)
        left = ', leaves a file' if outcome.made else ''
        left += ', changes a file' if outcome.changed else ''
        return f'error {number}{left}'
    if cell.operation == 'measure':
        return f'{int(outcome.text.split()[0]) / MIB:.1f} MiB'
    return outcome.text


def _on_target(matrix, cell, messages):
    both = matrix.run(cell)
    stock, patched = (_result(both[name], cell, messages)
                      for name in ('stock', 'patched'))
    if stock == patched:
        return patched
    return f'**{patched}** (stock: {stock})'


def _cell(matrix, row, operation, mode, messages):
    first = Cell(FILE, row, operation, mode)
    shown = _on_target(matrix, first, messages)
    if operation == 'measure':
        return shown
    without = _on_target(matrix, first._replace(target=FUSE), messages)
    if shown == without:
        return shown
    return f'{shown}; without fallocate(2): {without}'


def _section(matrix, operation, messages):
    yield f'## {TITLES[operation]}'
    yield ''
    yield '| | ' + ' | '.join(MODES) + ' |'
    yield '|---' * (len(MODES) + 1) + '|'
    for row in matrix.rows():
        if operation in row.operations():
            shown = [_cell(matrix, row, operation, mode, messages)
                     for mode in MODES]
            yield f'| {row.name} | ' + ' | '.join(shown) + ' |'
    yield ''


def _left_out(matrix):
    names = [row.name for row in ROWS if row not in matrix.rows()
             and row.since <= matrix.builds['stock'].version]
    if names:
        yield f'Left out, as it needs root: {", ".join(names)}.'
        yield ''


def _differing(matrix):
    return sum(both['stock'][:2] != both['patched'][:2]
               for both in matrix.outcomes.values())


def markdown(matrix, command):
    """The whole page; COMMAND made it."""
    messages = Messages()
    sections = [line for operation in OPERATIONS
                for line in _section(matrix, operation, messages)]
    versions = sorted({build.version_line
                       for build in matrix.builds.values()})
    return '\n'.join([
        '<!-- SPDX-License-Identifier: GPL-2.0-or-later -->',
        '# Formats, operations and preallocation modes', '',
        f'By `{command}`: {", ".join(versions)}, stock and patched.', '',
        INTRODUCTION.format(
            no_mode=NO_MODE, size=SIZE // MIB, old=OLD_SIZE // MIB,
            percent=DATA[SIZE] * 100 // SIZE), '',
        f'{len(matrix.outcomes)} results of each build; '
        f'{_differing(matrix)} of them differ.', '',
        *_left_out(matrix), *sections, '## Messages', '',
        *messages.lines(), ''])
