# SPDX-License-Identifier: GPL-2.0-or-later
"""The patch series as the directory series/ describes it.

load() reads the entries, plan() works out what each of them changes in
a given tree.  Nothing here writes anything: scripts/integrate makes the
commits.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import anchored_edits

ENTRY_NAME = re.compile(r'[0-9]{2,}-[a-z0-9][a-z0-9-]*')
ENTRY_FILES = {'message', 'files', 'edits'}
SINCE = '@SINCE@'


class SeriesProblem(Exception):
    """The series is wrong, or does not fit the tree."""


@dataclass
class Entry:
    name: str
    message: str
    files: list
    edits: list

    @property
    def subject(self):
        return self.message.split('\n', 1)[0]


@dataclass
class Change:
    """What an entry changes: path -> (mode, content)."""
    entry: Entry
    files: dict


# --- reading series/ -------------------------------------------------------

def load(directory):
    """Return the entries of the series in DIRECTORY, in name order."""
    directory = Path(directory)
    if not directory.is_dir():
        raise SeriesProblem(f'{directory}: no such directory')
    reader = _Reader(directory)
    names = sorted(item.name for item in directory.iterdir()
                   if item.is_dir() and not item.name.startswith('.'))
    entries = [reader.entry(name) for name in names]
    if not entries:
        raise SeriesProblem(f'{directory}: no series entries')
    return entries


class _Reader:
    def __init__(self, directory):
        self.directory = directory
        self.repository = directory.resolve().parent
        since = directory / 'since'
        self.since = None
        if since.exists():
            self.since = _uncommented(since.read_text('utf-8')).strip()

    def entry(self, name):
        if not ENTRY_NAME.fullmatch(name):
            raise SeriesProblem(f"{self.directory / name}: the name of an "
                                f"entry is NN-name")
        for item in sorted((self.directory / name).iterdir()):
            if item.name not in ENTRY_FILES:
                raise SeriesProblem(f'{item}: unknown file in an entry')
        edits = self.directory / name / 'edits'
        return Entry(name, self._message(name), self._files(name),
                     anchored_edits.parse(self._text(edits), str(edits)))

    def _message(self, name):
        path = self.directory / name / 'message'
        lines = _uncommented(self._text(path)).strip().split('\n')
        if not lines[0]:
            raise SeriesProblem(f'{path}: no subject')
        if len(lines) > 1 and lines[1]:
            raise SeriesProblem(f'{path}: no empty line after the subject')
        return '\n'.join(line.rstrip() for line in lines) + '\n'

    def _files(self, name):
        path = self.directory / name / 'files'
        files = []
        for number, line in enumerate(self._text(path).split('\n'), 1):
            words = line.split()
            if not words or words[0].startswith('#'):
                continue
            if len(words) > 2 or not all(map(anchored_edits.is_safe_path,
                                             words)):
                raise SeriesProblem(f"{path}:{number}: not 'SOURCE' or "
                                    f"'SOURCE DEST': {line.strip()}")
            files.append((words[-1], self._copy(words[0],
                                                f'{path}:{number}')))
        return files

    def _copy(self, source, where):
        path = self.repository / source
        if not path.is_file():
            raise SeriesProblem(f'{where}: {source}: no such file')
        mode = '100755' if path.stat().st_mode & 0o100 else '100644'
        content = path.read_bytes()
        if SINCE.encode() in content:
            content = _encode(self._expand(_decode(content), path))
        return mode, content

    def _text(self, path):
        if not path.exists():
            return ''
        return self._expand(_decode(path.read_bytes()), path)

    def _expand(self, text, path):
        if SINCE not in text:
            return text
        if not self.since:
            raise SeriesProblem(f'{path}: {SINCE} is used but '
                                f'{self.directory}/since is missing or empty')
        return text.replace(SINCE, self.since)


def _uncommented(text):
    """Drop the comment lines at the top."""
    lines = text.split('\n')
    while lines and lines[0].startswith('#'):
        lines.pop(0)
    return '\n'.join(lines)


# Not every file in QEMU is valid UTF-8; what is not must survive as it is.

def _decode(content):
    return content.decode('utf-8', 'surrogateescape')


def _encode(text):
    return text.encode('utf-8', 'surrogateescape')


# --- trees -----------------------------------------------------------------

class Directory:
    """A plain source directory."""

    def __init__(self, path):
        self.path = Path(path)

    def get(self, path):
        """Return mode and content of a file, None if there is none."""
        full = self.path / path
        if not os.path.lexists(full):
            return None
        if full.is_symlink() or not full.is_file():
            raise SeriesProblem(f'{full}: not a regular file')
        mode = '100755' if full.stat().st_mode & 0o100 else '100644'
        return mode, full.read_bytes()


class _Overlay:
    """A tree with the changes so far on top of it."""

    def __init__(self, base):
        self.base = base
        self.done = {}
        self.new = {}

    def get(self, path):
        for files in (self.new, self.done):
            if path in files:
                return files[path]
        return self.base.get(path)

    def add(self, path, file, entry):
        if self.get(path) is not None:
            raise SeriesProblem(f'{entry.name}: the tree already has a file '
                                f'{path}')
        self.new[path] = file

    def read(self, path):
        file = self.get(path)
        return None if file is None else _decode(file[1])

    def write(self, path, text):
        self.new[path] = (self.get(path)[0], _encode(text))

    def take_changes(self, entry):
        changed = {path: file for path, file in self.new.items()
                   if file != (self.done.get(path) or self.base.get(path))}
        self.done.update(self.new)
        self.new = {}
        return Change(entry, changed)


def plan(entries, base):
    """Return the Change of each entry for the tree BASE."""
    tree = _Overlay(base)
    changes = []
    for entry in entries:
        for path, file in entry.files:
            tree.add(path, file, entry)
        for edit in entry.edits:
            anchored_edits.apply(edit, tree)
        changes.append(tree.take_changes(entry))
    return changes
