# SPDX-License-Identifier: GPL-2.0-or-later
"""Find lines that our files have in common with a source tree.

The repository holds no code of QEMU.  Three lines in a row that are also
in a row in QEMU, white space and trivial lines left out, are taken for a
copy.
"""

import os
import re
import subprocess

IN_A_ROW = 3
SHORTEST = 8
# Beyond this size there is nothing that somebody wrote by hand.
LARGEST = 4 << 20

TRIVIAL = re.compile(
    rb'\W*|return-?\w+;|(#|from\S+)?import.*|#(include|endif|else).*|'
    rb'.*(SPDX-License-Identifier|licen[cs]e|Copyright).*',
    re.IGNORECASE)


def project_files(root):
    """Yield the repository's files, tracked or not, but not ignored ones."""
    names = subprocess.run(
        ['git', '-C', str(root), 'ls-files', '-z', '--cached', '--others',
         '--exclude-standard'], check=True, stdout=subprocess.PIPE).stdout
    for name in sorted(set(names.decode().split('\0'))):
        path = os.path.join(root, name)
        if name and os.path.isfile(path):
            yield path


class Lines:
    """The runs of lines in our files, to be looked for in trees."""

    def __init__(self, paths):
        self.runs = {}
        self.lines = set()
        for path in paths:
            self._add(path)

    def _add(self, path):
        text = read(path)
        if os.path.basename(path) == 'edits':
            text = re.sub(rb'^\|', b'', text, flags=re.MULTILINE)
        for run in runs(squeezed(text)):
            self.runs.setdefault(run, path)
            self.lines.update(run)

    def shared_with(self, tree):
        """Yield (our file, the tree's file, lines) for each common run."""
        for path in files_below(tree):
            lines = squeezed(read(path))
            # The cheap test that nearly every file fails.
            if self.lines.isdisjoint(lines):
                continue
            for run in runs(lines):
                if run in self.runs:
                    yield self.runs[run], path, b' '.join(run).decode(
                        errors='replace')


def files_below(tree):
    for directory, subdirectories, names in os.walk(tree):
        if '.git' in subdirectories:
            subdirectories.remove('.git')
        for name in names:
            path = os.path.join(directory, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path


def read(path):
    """Return the content of a text file, nothing for others."""
    if os.path.getsize(path) > LARGEST:
        return b''
    with open(path, 'rb') as file:
        text = file.read()
    return b'' if b'\0' in text else text


def squeezed(text):
    """Return the lines without any white space."""
    return text.translate(None, b' \t\r\f\v').split(b'\n')


def runs(lines):
    """Yield the runs of consecutive lines that are not trivial."""
    telling = [line for line in lines
               if len(line) >= SHORTEST and not TRIVIAL.fullmatch(line)]
    for i in range(len(telling) - IN_A_ROW + 1):
        yield tuple(telling[i:i + IN_A_ROW])
