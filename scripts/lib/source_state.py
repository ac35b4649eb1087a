# SPDX-License-Identifier: GPL-2.0-or-later
"""Names the state of the source that a result in docs/results is of."""
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def source_hash():
    """A hash of all files that git knows, but of the results themselves."""
    listing = subprocess.run(
        ['git', 'ls-files', '-s', '--', '.', ':!docs/results'], cwd=ROOT,
        check=True, stdout=subprocess.PIPE).stdout
    return subprocess.run(
        ['git', 'hash-object', '--stdin'], cwd=ROOT, input=listing,
        check=True, stdout=subprocess.PIPE).stdout.decode().strip()
