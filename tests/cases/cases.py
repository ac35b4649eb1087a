# SPDX-License-Identifier: GPL-2.0-or-later
"""What the tests of users' cases share.

A case is something that went wrong for people who preallocate images, with
this program or another, reduced to a small input. Its number (B01, ...) is
part of the name of each of its tests.
"""
import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'e2e'))

from e2e import (MIB, allocated, calls_on,  # noqa: E402
                 offset_of, patched, run, stock, traced)
from syscalls import WRITES  # noqa: E402

FORMATS = ('raw', 'qcow2')
# Without fallocate(2)
REFUSING = ('ext2', 'ext3', 'ext4-noextent', 'fuse')

# Of the zero writer
CHUNK = 16 * MIB
DEPTH = 2
# Where two at once would lay the file out in pieces
ONE_AT_A_TIME = ('ext2', 'ext3', 'ext4-noextent')


def product(*axes):
    """The rows of a table of all combinations."""
    rows = [()]
    for axis in axes:
        rows = [row + (value,) for row in rows for value in axis]
    return rows


def known_to_stock(mode):
    """The mode of stock QEMU whose rules and texts auto shares."""
    return 'falloc' if mode == 'auto' else mode


def writes_on(image, calls):
    return calls_on(image, calls, WRITES)


def bytes_written(image, calls):
    return sum(w.result for w in writes_on(image, calls) if w.error is None)


def same_but_for_the_mode(theirs, mode):
    """Stock's Result for known_to_stock(MODE) as if it knew the mode."""
    known = known_to_stock(mode)
    return theirs._replace(
        out=theirs.out.replace(f'preallocation={known}',
                               f'preallocation={mode}'),
        err=theirs.err.replace(f"'{known}'", f"'{mode}'"))


class Events(NamedTuple):
    """Trace events of a command: (name, {word: number, ...}) each."""
    result: object
    events: list

    def named(self, name):
        return [values for event, values in self.events if event == name]


def trace(command, **options):
    """Run a command that traces preallocation."""
    return events_of(run(traced(command), **options))


def events_of(result):
    events = []
    for line in result.err.splitlines():
        match = re.search(r'file_prealloc_(\w+) (.*)', line)
        if match:
            values = re.findall(r'([a-z ]+?) (-?\d+|0x[0-9a-f]+)(?= |$)',
                                match[2])
            events.append((match[1], {name.strip(): int(number, 0)
                                      for name, number in values}))
    return Events(result, events)


class ImageChecks:
    """Checks of images of any format, for an ImageCase."""

    def info(self, image, fmt):
        out = self.succeeds(patched.img('info', '--output=json', '-f', fmt,
                                        image)).out
        return json.loads(out)

    def make(self, image, fmt, size, *, mode='off', data=0):
        """An image that begins with DATA bytes of 0x07."""
        self.succeeds(patched.create(mode, image, size, fmt))
        if data:
            self.succeeds(patched.io('-f', fmt, '-c',
                                     f'write -P 7 0 {data}', image))

    def assertContent(self, image, fmt, size, data=0):
        """What a guest sees: DATA bytes of 0x07, then zeros up to SIZE."""
        self.assertEqual(self.info(image, fmt)['virtual-size'], size)
        if fmt == 'qcow2':
            self.succeeds(patched.img('check', '-f', fmt, image))
        commands = []
        for byte, start, end in ((7, 0, data), (0, data, size)):
            if end > start:
                commands += ['-c', f'read -P {byte} {start} {end - start}']
        result = self.succeeds(patched.io('-r', '-f', fmt, *commands, image))
        self.assertNotIn('verification failed', result.out + result.err)

    def assertAllocated(self, image, fmt, size, data=0):
        """An image that is allocated as a whole, and sound."""
        self.assertContent(image, fmt, size, data)
        self.assertGreaterEqual(allocated(image), size)
        if fmt == 'raw':
            self.assertEqual(os.stat(image).st_size, size)
            return
        extents = json.loads(self.succeeds(patched.img(
            'map', '--output=json', '-f', fmt, image)).out)
        self.assertEqual([e for e in extents if 'offset' not in e], [])

    def assertWritesTile(self, image, calls, start, end):
        """Each byte of the range was written once, and nothing outside."""
        at = start
        for write in sorted((w for w in writes_on(image, calls)
                             if w.error is None), key=offset_of):
            self.assertEqual(offset_of(write), at)
            at += write.result
        self.assertEqual(at, end)

    def assertSameAsStock(self, mode, theirs, ours):
        """OURS is what stock answers for the mode, or for falloc if auto."""
        self.assertEqual(ours, same_but_for_the_mode(theirs, mode))


def both(method, mode, *args, **kwargs):
    """The command of stock for a mode, and ours."""
    return (getattr(stock, method)(known_to_stock(mode), *args, **kwargs),
            getattr(patched, method)(mode, *args, **kwargs))
