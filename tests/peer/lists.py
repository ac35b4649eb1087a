# SPDX-License-Identifier: GPL-2.0-or-later
"""Which of QEMU's own tests the peer suite runs, format by format.

Their names are those that tests/qemu-iotests/check takes. What the series
itself adds to QEMU needs no line here: it is found in series/*/files, and
the test says itself for which formats it is.
"""
import re
from pathlib import Path

SERIES = Path(__file__).resolve().parents[2] / 'series'

# Left out: 185, whose block jobs need an emulator that steps its clock
# (accelerator qtest), which the distribution's cannot.
LISTS = {
    'raw': '''
        025 033 048 063 086 106 113 150 163 175 178 221 251 253 308''',
    'qcow2': '''
        025 029 033 042 044 048 049 053 058 060 061 063 072 079 082 086 089
        095 102 108 114 122 125 150 153 163 172 174 178 188 206 235 243 244
        245 246 250 251 270 271 272 274 292 298 308 qemu-img-bitmaps''',
    # Those that create, grow, map or measure
    'luks': '''
        025 033 048 210 282 288''',
}

# The tests of allocation and length. They run on every file system and
# version, the lists only where the suite is not to take longer.
SUBSET = '106 125 175 178 206 221 243 271 274 298 308'.split()

# A test may say that it cannot run only if it is named here, with what it
# says, and if it says the same on stock.
NOT_RUN = {
    # (format, test): what it says
    # On ext3: before it begins it wants fallocate(1) to reserve space.
    ('qcow2', '125'): "the test filesystem's fallocate() is broken",
}


def names_of(fmt, subset):
    names = LISTS[fmt].split()
    return [name for name in names if name in SUBSET or not subset]


def supports(text, fmt):
    """Whether the source of a test declares to support the format."""
    def declared(word):
        lists = re.findall(rf'(?<![a-z]){word}_fmts?=\[([^]]*)\]'
                           rf'|^\s*_{word}_fmt (.*)$', text, re.M)
        return re.findall(r'\w+', ' '.join(map(' '.join, lists)))

    named = declared('supported')
    return (not named or fmt in named or 'generic' in named) \
        and fmt not in declared('unsupported')


def ours():
    """Names of the tests that the series adds."""
    added = [line.split()[-1] for path in sorted(SERIES.glob('*/files'))
             for line in path.read_text().splitlines() if line.strip()]
    return [Path(name).name for name in added
            if name.startswith('tests/qemu-iotests/tests/')
            and not Path(name).suffix]
