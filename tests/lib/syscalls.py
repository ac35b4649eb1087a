# SPDX-License-Identifier: GPL-2.0-or-later
"""The system calls of a command, as strace(1) sees them.

    calls = strace_calls(['qemu-img', 'create', ...])
    writes = [c for c in calls if c.name in WRITES and c.path == image]

Each thread is traced into a file of its own, so that no call is torn into
an "unfinished" and a "resumed" line; the calls are then merged by the time
at which they began.
"""
import re
import subprocess
import tempfile
from pathlib import Path
from typing import List, NamedTuple, Optional

WRITES = ('write', 'writev', 'pwrite64', 'pwritev', 'pwritev2')
FILE_CALLS = WRITES + (
    'fallocate', 'ftruncate', 'ftruncate64', 'truncate', 'fsync',
    'fdatasync', 'sync_file_range', 'copy_file_range', 'open', 'openat',
    'close', 'fcntl', 'io_submit', 'io_uring_enter')

_CALL = re.compile(r'(?P<start>\d+\.\d+) (?P<name>\w+)\((?P<rest>.*)')
_RESULT = re.compile(
    r'\)\s+= (?:(?P<number>-?\d+|0x[0-9a-f]+)|\?)(?:<[^>]*>)?'
    r'(?: (?P<error>E[A-Z0-9]+))?(?: \(.*?\))?'
    r'(?: <(?P<seconds>[\d.]+)>)?$')
_OPEN, _CLOSE = '([{', ')]}'


class Call(NamedTuple):
    thread: int
    start: float                # seconds since the epoch
    seconds: float              # how long it took
    name: str
    args: List[str]             # as strace prints them
    result: Optional[int]       # None: the thread ended in the call
    error: Optional[str]        # 'ENOENT', ... if the call failed

    @property
    def path(self):
        """The file behind the descriptor that is the first argument."""
        match = re.match(r'\w+<(.*)>', self.args[0] if self.args else '')
        return match.group(1) if match else None


class StraceError(Exception):
    """strace could not run the command, or printed what we cannot read."""


def _skip_string(text, at):
    """The index behind the string that begins at AT."""
    at += 1
    while at < len(text) and text[at] != '"':
        at += 2 if text[at] == '\\' else 1
    return at + 1


def split_args(text):
    """Split at the commas outside strings, brackets and <paths>."""
    args, begin, depth, at = [], 0, 0, 0
    while at < len(text):
        char = text[at]
        if char == '"':
            at = _skip_string(text, at)
            continue
        if char == '<' and at > 0 and text[at - 1].isalnum():
            at = text.find('>', at) + 1 or len(text)
            continue
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == ',' and depth == 0:
            args.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    last = text[begin:].strip()
    return args + [last] if last else args


def parse_line(thread, line):
    """A Call, or None for what is no call (signals, exits)."""
    call = _CALL.match(line)
    if not call:
        # '???(': the thread was gone before strace could ask what it called
        if re.match(r'\d+\.\d+ (\+\+\+ |--- |\?\?\?\()', line):
            return None
        raise StraceError(f'cannot read strace output: {line}')
    rest = call['rest']
    result = None
    for result in _RESULT.finditer(rest):
        pass
    if result is None and 'unfinished' not in rest:
        raise StraceError(f'cannot read strace output: {line}')
    end = result.start() if result else rest.index(' <unfinished')
    number = result and result['number']
    return Call(thread, float(call['start']),
                float(result['seconds'] or 0) if result else 0.0,
                call['name'], split_args(rest[:end]),
                int(number, 0) if number else None,
                result['error'] if result else None)


def read_trace(directory):
    """Merge the files trace.THREAD that strace has left in a directory."""
    calls = []
    for file in Path(directory).glob('trace.*'):
        thread = int(file.suffix[1:])
        with open(file, errors='replace') as lines:
            calls += [parse_line(thread, line.rstrip('\n'))
                      for line in lines]
    return sorted((c for c in calls if c), key=lambda c: c.start)


def in_flight_max(calls):
    """How many of these calls ran at the same time, at most."""
    edges = [(c.start, 1) for c in calls]
    edges += [(c.start + c.seconds, -1) for c in calls]
    running = most = 0
    for _, step in sorted(edges):
        running += step
        most = max(most, running)
    return most


def strace_calls(command, trace=FILE_CALLS, status=0, **popen_options):
    """Run a command under strace; returns its file system calls.

    The command must end with exit status STATUS; None: any will do.
    """
    names = ','.join('?' + name for name in trace)
    with tempfile.TemporaryDirectory() as directory:
        result = subprocess.run(
            ['strace', '-ff', '-ttt', '-T', '-y', '-s', '16',
             '--seccomp-bpf', '-e', f'trace={names}', '-o',
             f'{directory}/trace'] + [str(word) for word in command],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors='replace',
            **popen_options)
        if status is not None and result.returncode != status:
            raise StraceError(f'{" ".join(map(str, command))}: exit status '
                              f'{result.returncode}: {result.stdout}')
        return read_trace(directory)
