#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Does the search for shared lines find copies, and nothing else?"""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / 'tests' / 'lib'))
sys.dont_write_bytecode = True

from tap import main  # noqa: E402
import shared_lines  # noqa: E402

THEIRS = '''\
#include "first.h"
int theirs(void)
{
    first_statement(1);

    second_statement(2);
    third_statement(3);
    return 0;
}
'''


class SharedLines(unittest.TestCase):
    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix='test-shared-'))
        self.addCleanup(shutil.rmtree, self.directory)
        self.tree = self.directory / 'tree'
        self.write('tree/block/theirs.c', THEIRS)

    def write(self, name, text):
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def shared(self, text, name='ours.c'):
        ours = self.write(name, text)
        found = list(shared_lines.Lines([ours]).shared_with(self.tree))
        for our_file, their_file, _ in found:
            self.assertEqual(our_file, ours)
            self.assertEqual(their_file,
                             str(self.tree / 'block' / 'theirs.c'))
        return [lines for _, _, lines in found]

    def test_three_lines(self):
        self.assertEqual(
            self.shared('    first_statement(1);\n    second_statement(2);\n'
                        '    third_statement(3);\n'),
            ['first_statement(1); second_statement(2); third_statement(3);'])

    def test_every_run_is_named(self):
        self.assertEqual(len(self.shared(THEIRS)), 2)

    def test_white_space_and_trivial_lines_do_not_hide_a_copy(self):
        self.assertTrue(self.shared('first_statement( 1 );\r\n{\n\n'
                                    'second_statement(\t2);/*\n*/\n'
                                    .replace('/*', '\n/*')
                                    + 'return ret;\nx++;\n'
                                    'third_statement (3);'))

    def test_two_lines(self):
        self.assertEqual(self.shared('first_statement(1);\n'
                                     'second_statement(2);\n'
                                     'other_statement(3);\n'), [])

    def test_other_order(self):
        self.assertEqual(self.shared('second_statement(2);\n'
                                     'first_statement(1);\n'
                                     'third_statement(3);\n'), [])

    def test_something_in_between(self):
        self.assertEqual(self.shared('first_statement(1);\n'
                                     'second_statement(2);\n'
                                     'something_else();\n'
                                     'third_statement(3);\n'), [])

    def test_only_trivial_lines(self):
        text = ('#include "first.h"\n#include "second.h"\n#endif\nimport os\n'
                'from os import path\n/*\n * SPDX-License-Identifier: X\n'
                ' */\n}\n----------------\nreturn result;\nbreak;\n')
        self.write('tree/block/theirs.c', text)
        self.assertEqual(self.shared(text), [])

    def test_text_of_an_edit(self):
        self.assertTrue(self.shared('edit a.c\nafter x\n|first_statement(1);\n'
                                    '|second_statement(2);\n|\n'
                                    '|third_statement(3);\n',
                                    'series/01-x/edits'))

    def test_texts_of_two_edits(self):
        self.assertEqual(self.shared('edit a.c\nafter x\n'
                                     '|first_statement(1);\n'
                                     '|second_statement(2);\nedit a.c\n'
                                     'after y_is_here\n'
                                     '|third_statement(3);\n',
                                     'series/01-x/edits'), [])

    def test_binary_files_do_not_count(self):
        text = THEIRS.encode() + b'\0'
        self.write('tree/block/theirs.c', text)
        self.assertEqual(self.shared(THEIRS), [])

    def test_project_files(self):
        root = self.directory / 'project'
        for name in 'tracked', 'new', 'ignored', 'gone':
            self.write(f'project/{name}', name)
        self.write('project/.gitignore', 'ignored\n')
        subprocess.run(['git', 'init', '-q', root], check=True)
        subprocess.run(['git', '-C', root, 'add', 'tracked', 'gone'],
                       check=True)
        (root / 'gone').unlink()
        self.assertEqual(
            sorted(map(str, shared_lines.project_files(root))),
            [str(root / name) for name in ('.gitignore', 'new', 'tracked')])


if __name__ == '__main__':
    main()
