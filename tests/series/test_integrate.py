#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of scripts/integrate on tiny trees and series made up here."""

import os
import re
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

SOURCE = '''\
#include "first.h"

static int one(void)
{
    switch (mode) {
    case FULL:
        full();
        break;
    case OFF:
        off();
        break;
    }
}

static int two(void)
{
    switch (mode) {
    case FULL:
        full();
        break;
    }
}
'''


def write(path, text, mode=0o644):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)


class Playground(unittest.TestCase):
    """A QEMU tree and a series, both tiny, in a directory of their own."""

    def setUp(self):
        self.directory = Path(tempfile.mkdtemp(prefix='test-integrate-'))
        self.addCleanup(shutil.rmtree, self.directory)
        self.tree = self.directory / 'tree'
        self.repository = self.directory / 'repository'
        self.series = self.repository / 'series'
        self.series.mkdir(parents=True)
        write(self.tree / 'VERSION', '9.9.9\n')
        write(self.tree / 'a.c', SOURCE)
        write(self.tree / 'other.c', 'other\n')
        # A user who has set up nothing, unless a test does.
        home = self.directory / 'home'
        home.mkdir()
        self.environment = dict(os.environ, HOME=str(home),
                                XDG_CONFIG_HOME=str(home),
                                GIT_CONFIG_NOSYSTEM='1')

    def entry(self, name='01-first', message='First\n', **files):
        for kind, text in dict(files, message=message).items():
            write(self.series / name / kind, text)

    def integrate(self, *options, tree=None):
        return subprocess.run(
            [sys.executable, str(ROOT / 'scripts' / 'integrate'), *options,
             '--series', str(self.series), str(tree or self.tree)],
            env=self.environment, capture_output=True, check=False,
            encoding='utf-8')

    def success(self, *options, tree=None):
        result = self.integrate(*options, tree=tree)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, '')
        return result.stdout

    def failure(self, *options, tree=None):
        result = self.integrate(*options, tree=tree)
        self.assertEqual(result.returncode, 1, result)
        self.assertNotIn('Traceback', result.stderr)
        self.assertRegex(result.stderr, r'\Aintegrate: ')
        return result.stderr

    def git(self, *args, tree=None, check=True):
        result = subprocess.run(
            ['git', '-C', str(tree or self.tree), *args], check=check,
            env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, encoding='utf-8')
        return result.stdout.strip()

    def git_tree(self):
        """Make the tree a user's git repository."""
        self.git('init', '-q', '-b', 'master')
        self.git('config', 'user.name', 'Jo User')
        self.git('config', 'user.email', 'jo@example.org')
        self.git('add', '.')
        self.git('commit', '-q', '-m', 'Their work')


class EditCase(Playground):
    """What an edit does to a.c, or why it does nothing."""

    def edited(self, edits):
        """Apply EDITS to a.c and return the lines that it has then."""
        self.entry(edits=edits)
        self.success()
        return (self.tree / 'a.c').read_text()

    def refused(self, edits, *reasons):
        self.entry(edits=edits)
        before = (self.tree / 'a.c').read_text()
        error = self.failure()
        for reason in reasons:
            self.assertIn(reason, error)
        self.assertEqual((self.tree / 'a.c').read_text(), before)
        self.assertFalse((self.tree / '.git').exists())


class Edits(EditCase):
    """Actions, scopes and anchors."""

    def test_before(self):
        text = self.edited('edit a.c\nbefore ^static int two\n|new\n|\n')
        self.assertEqual(text, SOURCE.replace('static int two',
                                              'new\n\nstatic int two'))

    def test_after(self):
        text = self.edited('edit a.c\nafter ^#include "first\n|second\n')
        self.assertEqual(text, SOURCE.replace('first.h"\n',
                                              'first.h"\nsecond\n'))

    def test_after_last_line(self):
        write(self.tree / 'a.c', 'x\ny\n')
        self.assertEqual(self.edited('edit a.c\nafter ^y$\n|z\n'),
                         'x\ny\nz\n')

    def test_no_newline_at_the_end(self):
        write(self.tree / 'a.c', 'x\ny')
        self.assertEqual(self.edited('edit a.c\nafter ^y$\n|z\n'), 'x\ny\nz')

    def test_replace_line_in_scope(self):
        text = self.edited('edit a.c\nin ^static int two\n'
                           'replace full\\(\\)\n|        empty();\n')
        head, tail = SOURCE.split('static int two')
        self.assertEqual(text, head + 'static int two'
                         + tail.replace('full()', 'empty()'))

    def test_replace_through(self):
        text = self.edited('edit a.c\nin ^static int one\nreplace case FULL\n'
                           'through break\n|new\n')
        self.assertIn('switch (mode) {\nnew\n    case OFF:\n', text)
        self.assertEqual(text.count('full()'), 1)

    def test_replace_until(self):
        text = self.edited('edit a.c\nin ^static int one\nreplace case FULL\n'
                           'until case OFF\n|new\n')
        self.assertIn('switch (mode) {\nnew\n    case OFF:\n', text)

    def test_delete_line(self):
        text = self.edited('edit a.c\ndelete ^#include\n')
        self.assertEqual(text, SOURCE.split('\n', 1)[1])

    def test_delete_through(self):
        text = self.edited('edit a.c\nin ^static int one\ndelete case FULL\n'
                           'through break\n')
        self.assertIn('switch (mode) {\n    case OFF:\n', text)

    def test_delete_until(self):
        text = self.edited('edit a.c\ndelete ^static int one\n'
                           'until ^static int two\n')
        self.assertIn('first.h"\n\nstatic int two', text)

    def test_substitute(self):
        text = self.edited('edit a.c\nsubstitute 2 ^( *)full\\(\\)\n'
                           '|\\1empty()\n')
        self.assertEqual(text, SOURCE.replace('full()', 'empty()'))

    def test_substitute_in_scope(self):
        text = self.edited('edit a.c\nin ^static int two\n'
                           'substitute 1 full\n|empty\n')
        self.assertEqual(text.count('empty'), 1)
        self.assertLess(text.index('int two'), text.index('empty'))

    def test_substitute_twice_in_a_line(self):
        write(self.tree / 'a.c', 'x x\n')
        self.assertEqual(self.edited('edit a.c\nsubstitute 2 x\n|y\n'),
                         'y y\n')

    def test_substitute_wrong_count(self):
        self.refused('edit a.c\nsubstitute 3 full\n|empty\n',
                     "'substitute full' matches 2 times, expected 3")

    def test_substitute_bad_template(self):
        self.refused('edit a.c\nsubstitute 2 full\n|\\1\n',
                     "bad replacement '\\1'")

    def test_scope_with_to(self):
        text = self.edited('edit a.c\nin ^static int one\nto case OFF\n'
                           'delete break\n')
        self.assertIn('full();\n    case OFF', text)

    def test_scope_includes_its_ends(self):
        text = self.edited('edit a.c\nin ^static int one\nto case OFF\n'
                           'before case OFF\n|new\n\n'
                           'edit a.c\nin ^static int one\n'
                           'after ^static int\n|newer\n')
        self.assertIn('new\n    case OFF', text)
        self.assertIn('one(void)\nnewer\n', text)

    def test_several_edits_see_each_other(self):
        text = self.edited('edit a.c\nafter ^#include\n|new\n'
                           'edit a.c\nafter ^new$\n|newer\n')
        self.assertIn('first.h"\nnew\nnewer\n', text)

    def test_comments_and_empty_lines(self):
        text = self.edited('# why\n\nedit a.c\n# why\nafter ^#include\n\n'
                           '|#not a comment\n# why\n|second\n')
        self.assertIn('first.h"\n#not a comment\nsecond\n', text)

    def test_bytes_that_are_not_utf8_survive(self):
        write(self.tree / 'a.c', b'\xe9\r\f\nx\n')
        self.entry(edits='edit a.c\nafter ^x$\n|é\n')
        self.success()
        self.assertEqual((self.tree / 'a.c').read_bytes(),
                         b'\xe9\r\f\nx\n\xc3\xa9\n')

    def test_anchor_without_match(self):
        self.refused('# x\nedit a.c\nafter ^nowhere$\n|new\n',
                     '/series/01-first/edits:2: a.c: ',
                     "'after ^nowhere$' matches 0 times, expected 1")

    def test_anchor_with_two_matches(self):
        self.refused('edit a.c\nafter full\n|new\n', "'after full' matches 2 "
                     'times (lines 7, 19), expected 1')

    def test_scope_without_match(self):
        self.refused('edit a.c\nin nowhere\nafter full\n|new\n',
                     "'in nowhere' matches 0 times")

    def test_scope_with_two_matches(self):
        self.refused('edit a.c\nin static int\nafter full\n|new\n',
                     "'in static int' matches 2 times (lines 3, 15)")

    def test_scope_without_end(self):
        self.refused('edit a.c\nin static int two\nto case OFF\n'
                     'after full\n|new\n',
                     "'to case OFF' matches 0 times after the start")

    def test_range_end_outside_scope(self):
        self.refused('edit a.c\nin static int one\nreplace case OFF\n'
                     'until case FULL\n|new\n',
                     "'until case FULL' matches 0 times after the start")

    def test_missing_file(self):
        self.refused('edit b.c\nafter x\n|new\n',
                     'b.c: no such file in this tree')

    def test_symbolic_link(self):
        (self.tree / 'b.c').symlink_to('a.c')
        self.refused('edit b.c\nafter first\n|new\n',
                     'b.c: not a regular file')


class Alternatives(EditCase):
    """Which alternative is used."""

    BOTH = 'edit a.c\n{}after ^#include\n|new\nor\n{}after ^#include\n|other\n'

    def test_anchor_decides(self):
        text = self.edited('edit a.c\nafter nowhere\n|new\nor\n'
                           'after ^#include\n|other\n')
        self.assertIn('first.h"\nother\n', text)
        self.assertNotIn('new', text)

    def test_if_decides(self):
        text = self.edited(self.BOTH.format('if other.c ^oth\n',
                                            'if other.c ^x\n'))
        self.assertIn('first.h"\nnew\n', text)

    def test_unless_decides(self):
        text = self.edited(self.BOTH.format('unless other.c ^oth\n',
                                            'unless other.c ^x\n'))
        self.assertIn('first.h"\nother\n', text)

    def test_missing_file_has_no_line(self):
        text = self.edited(self.BOTH.format('if none.c .\n',
                                            'unless none.c .\n'))
        self.assertIn('first.h"\nother\n', text)

    def test_all_conditions_count(self):
        text = self.edited(self.BOTH.format(
            'if other.c other\nif other.c x\n', 'if other.c other\n'))
        self.assertIn('first.h"\nother\n', text)

    def test_conditions_see_earlier_edits(self):
        text = self.edited('edit other.c\nafter ^other$\n|mark\n\n'
                           + self.BOTH.format('if other.c mark\n',
                                              'unless other.c mark\n'))
        self.assertIn('first.h"\nnew\n', text)

    def test_nothing(self):
        text = self.edited('edit a.c\nif other.c other\nnothing\nor\n'
                           'unless other.c other\ndelete ^#include\n')
        self.assertEqual(text, SOURCE)

    def test_file_differs(self):
        text = self.edited('edit moved.c\nafter ^#include\n|new\nor\n'
                           'file a.c\nafter ^#include\n|new\n')
        self.assertIn('first.h"\nnew\n', text)

    def test_two_fit(self):
        self.refused(self.BOTH.format('', ''), 'edits:1: a.c: more than one '
                     'alternative fits (those of lines 1 and 4)')

    def test_none_fits(self):
        self.refused(self.BOTH.format('if other.c nowhere\n',
                                      'unless other.c other\n'),
                     'edits:1: a.c: no alternative fits\n',
                     "  line 1: a.c: 'if other.c nowhere' does not hold\n",
                     "  line 5: a.c: 'unless other.c other' does not hold\n")


class Syntax(Playground):
    """Mistakes in a series entry are found before anything is done."""

    MISTAKES = [
        ('unknown word', 'edit a.c\nappend x\n|t\n', 2,
         "unknown word 'append'"),
        ('indented word', 'edit a.c\n after x\n|t\n', 2, "unknown word ''"),
        ('no edit', 'after x\n|t\n', 1, "'after' before the first"),
        ('no operand', 'edit a.c\nafter\n|t\n', 2, 'needs an operand'),
        ('operand', 'edit a.c\nor else\n', 2, 'takes no operand'),
        ('bad expression', 'edit a.c\nafter (\n|t\n', 2, 'bad expression'),
        ('no action', 'edit a.c\nin x\n', 1, 'without an action'),
        ('no action before or', '\nedit a.c\nor\nafter x\n|t\n', 2,
         'without an action'),
        ('two actions', 'edit a.c\nafter x\nafter y\n|t\n', 3,
         'a second action'),
        ('no text', 'edit a.c\nafter x\n', 1, "'after' needs text"),
        ('no text to replace with', 'edit a.c\nreplace x\n', 1,
         "'replace' needs text"),
        ('text to delete', 'edit a.c\ndelete x\n|t\n', 1, 'takes no text'),
        ('text without action', 'edit a.c\n|t\n', 2, 'text without'),
        ('text first', '|t\n', 1, 'text without'),
        ('nothing, always', 'edit a.c\nnothing\n', 1, 'needs a condition'),
        ('nothing in scope', 'edit a.c\nif b x\nin x\nnothing\n', 1,
         'takes no scope'),
        ('condition too late', 'edit a.c\nafter x\nif b x\n|t\n', 3,
         'before the action'),
        ('condition without regex', 'edit a.c\nif b\nafter x\n|t\n', 2,
         'needs a file and an expression'),
        ('to without in', 'edit a.c\nto x\nafter x\n|t\n', 2,
         "has to follow an 'in'"),
        ('two scopes', 'edit a.c\nin x\nin y\nafter x\n|t\n', 3,
         "a second 'in'"),
        ('range of an insertion', 'edit a.c\nafter x\nuntil y\n|t\n', 3,
         "has to follow 'replace'"),
        ('two range ends', 'edit a.c\ndelete x\nuntil y\nthrough z\n', 4,
         'misplaced'),
        ('range end after text', 'edit a.c\nreplace x\n|t\nuntil y\n', 4,
         'misplaced'),
        ('no count', 'edit a.c\nsubstitute x y\n|t\n', 2, 'needs a count'),
        ('count of 0', 'edit a.c\nsubstitute 0 y\n|t\n', 2,
         'needs a count'),
        ('two templates', 'edit a.c\nsubstitute 1 x\n|t\n|t\n', 1,
         'exactly one line'),
        ('path outside', 'edit ../a.c\nafter x\n|t\n', 1,
         'not a path inside'),
        ('absolute path', 'edit /a.c\nafter x\n|t\n', 1,
         'not a path inside'),
    ]

    def check(self, edits, line, reason):
        self.entry(edits=edits)
        error = self.failure()
        self.assertIn(f'/series/01-first/edits:{line}: ', error)
        self.assertIn(reason, error)
        self.assertEqual(error.count('\n'), 1)


def add_syntax_tests():
    for name, *rest in Syntax.MISTAKES:
        def test(self, rest=rest):
            self.check(*rest)
        slug = re.sub('[^a-z0-9]+', '_', name)
        assert not hasattr(Syntax, f'test_{slug}')
        setattr(Syntax, f'test_{slug}', test)


add_syntax_tests()


class Entries(Playground):
    """message, files, since and the directory itself."""

    def test_no_entries(self):
        self.assertIn('no series entries', self.failure())

    def test_name_order_and_list(self):
        for name, subject in (('02-b', 'B'), ('01-z', 'Z'), ('10-a', 'A')):
            self.entry(name, f'{subject}\n', files=f'{name} {name}.c\n')
            write(self.repository / name, name)
        self.assertEqual(self.success('--list'),
                         '01-z: Z\n02-b: B\n10-a: A\n')
        self.success()
        self.assertEqual(self.git('log', '--format=%s', '--reverse'),
                         'Import QEMU 9.9.9\nZ\nB\nA')

    def test_bad_entry_name(self):
        self.entry('first')
        self.assertIn('the name of an entry is NN-name', self.failure())

    def test_unknown_file_in_entry(self):
        self.entry(edit='edit a.c\ndelete ^#inc\n')
        self.assertIn('01-first/edit: unknown file', self.failure())

    def test_message(self):
        self.entry(message='# SPDX\n# why\nSubject: é\n\nBody  \n# of it\n\n',
                   edits='edit a.c\ndelete ^#inc\n')
        self.success()
        self.assertEqual(self.git('cat-file', 'commit', 'HEAD')
                         .split('\n\n', 1)[1],
                         'Subject: é\n\nBody\n# of it')

    def test_no_message(self):
        self.entry(message='')
        self.assertIn('message: no subject', self.failure())

    def test_no_empty_line_after_subject(self):
        self.entry(message='Subject\nbody\n')
        self.assertIn('no empty line after the subject', self.failure())

    def test_files(self):
        write(self.repository / 'src' / 'new.c', 'new\n')
        write(self.repository / 'run', '#!/bin/sh\n', 0o755)
        self.entry(files='# comment\n\nsrc/new.c\nrun tests/run\n')
        self.success()
        self.assertEqual((self.tree / 'src/new.c').read_text(), 'new\n')
        self.assertEqual((self.tree / 'src/new.c').stat().st_mode & 0o111, 0)
        self.assertEqual((self.tree / 'tests/run').stat().st_mode & 0o100,
                         0o100)
        self.assertIn('100755', self.git('ls-tree', 'HEAD', 'tests/run'))

    def test_edit_of_a_copied_file_keeps_its_mode(self):
        write(self.repository / 'run', '#!/bin/sh\n', 0o755)
        self.entry(files='run\n')
        self.entry('02-second', 'Second\n',
                   edits='edit run\nafter ^#!\n|exit 1\n')
        self.success()
        self.assertEqual((self.tree / 'run').read_text(),
                         '#!/bin/sh\nexit 1\n')
        self.assertIn('100755', self.git('ls-tree', 'HEAD', 'run'))

    def test_missing_source(self):
        self.entry(files='\nnew.c\n')
        self.assertIn('01-first/files:2: new.c: no such file', self.failure())

    def test_bad_line_in_files(self):
        for line in 'a b c', '../a', 'a /etc/passwd':
            with self.subTest(line):
                self.entry(files=f'{line}\n')
                self.assertIn('01-first/files:1: not', self.failure())

    def test_file_is_there_already(self):
        write(self.repository / 'a.c', 'new\n')
        self.entry(files='a.c\n')
        self.assertIn('01-first: the tree already has a file a.c',
                      self.failure())

    def test_since(self):
        write(self.series / 'since', '# SPDX\n11.0\n')
        write(self.repository / 'new.c', '/* since @SINCE@ */\n')
        self.entry(message='Since @SINCE@\n', files='new.c\n',
                   edits='edit a.c\nreplace ^#inc\n|(since @SINCE@)\n')
        self.success()
        self.assertEqual(self.git('log', '-1', '--format=%s'), 'Since 11.0')
        self.assertEqual((self.tree / 'new.c').read_text(),
                         '/* since 11.0 */\n')
        self.assertIn('(since 11.0)\n', (self.tree / 'a.c').read_text())

    def test_since_is_missing(self):
        self.entry(message='Since @SINCE@\n')
        self.assertIn('@SINCE@ is used but', self.failure())

    def test_entry_that_changes_nothing(self):
        self.entry(edits='edit a.c\nif a.c first\nnothing\n')
        self.entry('02-second', 'Second\n', edits='edit a.c\ndelete ^#inc\n')
        self.assertIn('01-first: First (not needed in this tree)\n',
                      self.success())
        self.assertEqual(self.git('log', '--format=%s'),
                         'Second\nImport QEMU 9.9.9')


class Trees(Playground):
    """Plain directories, git trees, and what is left alone in them."""

    def setUp(self):
        super().setUp()
        self.entry(edits='edit a.c\nafter ^#include\n|new\n')

    def snapshot(self, tree=None):
        """Everything that running again could touch, and when it did."""
        tree = tree or self.tree
        return {path: (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns)
                for path in tree.rglob('*')
                if '.git' not in path.parts or 'refs' in path.parts}

    def test_output(self):
        output = self.success()
        head = self.git('rev-parse', 'HEAD')
        self.assertTrue(output.endswith(f'01-first: First\nprealloc {head}\n'),
                        output)

    def test_plain_directory(self):
        self.success()
        self.assertEqual(self.git('symbolic-ref', 'HEAD'),
                         'refs/heads/prealloc')
        self.assertEqual(self.git('rev-parse', 'pristine'),
                         self.git('rev-parse', 'prealloc~1'))
        self.assertEqual(self.git('show', 'pristine:a.c') + '\n', SOURCE)
        self.assertEqual(self.git('status', '--porcelain'), '')
        self.assertEqual(sorted(p.name for p in self.tree.iterdir()),
                         ['.git', 'VERSION', 'a.c', 'other.c'])

    def test_import_takes_ignored_files_and_raw_bytes(self):
        write(self.tree / '.gitignore', 'ignored\n')
        write(self.tree / '.gitattributes', '* text=auto ident\n')
        write(self.tree / 'ignored', 'x\r\n$Id$\n')
        write(self.tree / 'run', '', 0o755)
        self.success()
        self.assertIn('ignored', self.git('ls-files').split())
        raw = subprocess.run(['git', '-C', self.tree, 'cat-file', 'blob',
                              'pristine:ignored'], check=True,
                             stdout=subprocess.PIPE).stdout
        self.assertEqual(raw, b'x\r\n$Id$\n')
        self.assertIn('100755', self.git('ls-tree', 'pristine', 'run'))

    def test_import_leaves_build_directories_out(self):
        write(self.tree / 'build' / 'build.ninja', '')
        write(self.tree / 'build' / 'a.o', '')
        self.success()
        self.assertEqual(self.git('ls-files', 'build'), '')

    def test_import_after_an_interrupted_one(self):
        write(self.tree / '.prealloc-import' / 'rest', 'x')
        self.success()
        self.assertEqual(self.git('ls-files').split(),
                         ['VERSION', 'a.c', 'other.c'])

    def test_nothing_is_left_when_the_series_does_not_fit(self):
        self.entry(edits='edit a.c\nafter nowhere\n|new\n')
        before = self.snapshot()
        self.failure()
        self.assertEqual(self.snapshot(), before)

    def test_same_ids_everywhere(self):
        copy = self.directory / 'copy'
        shutil.copytree(self.tree, copy)
        self.success()
        write(Path(self.environment['HOME']) / '.gitconfig',
              '[user]\nname = Someone\nemail = else@example.org\n'
              '[core]\nautocrlf = true\n[commit]\ngpgSign = true\n'
              '[init]\ndefaultBranch = trunk\n')
        self.environment.update(GIT_AUTHOR_NAME='x', GIT_DIR='/nonexistent',
                                GIT_INDEX_FILE='/nonexistent', TZ='UTC+5')
        self.success(tree=copy)
        for name in 'GIT_DIR', 'GIT_INDEX_FILE':
            del self.environment[name]
        self.assertEqual(self.git('rev-parse', 'prealloc', tree=copy),
                         self.git('rev-parse', 'prealloc'))
        self.assertEqual((copy / 'a.c').read_bytes(),
                         (self.tree / 'a.c').read_bytes())

    def check_twice(self):
        self.success()
        before = self.snapshot()
        log = self.git('reflog')
        self.assertIn('already integrated, nothing changed', self.success())
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(self.git('reflog'), log)

    def test_twice_on_a_plain_directory(self):
        self.check_twice()

    def test_twice_on_a_git_tree(self):
        self.git_tree()
        self.check_twice()

    def test_only_files_that_differ_are_written(self):
        self.git_tree()
        os.utime(self.tree / 'a.c', (1, 1))
        os.utime(self.tree / 'other.c', (1, 1))
        self.success()
        self.assertEqual((self.tree / 'other.c').stat().st_mtime, 1)
        self.assertNotEqual((self.tree / 'a.c').stat().st_mtime, 1)

    def test_changed_series(self):
        self.entry('02-second', 'Second\n',
                   edits='edit other.c\nafter ^other\n|new\n')
        self.success()
        base = self.git('rev-parse', 'pristine')
        os.utime(self.tree / 'a.c', (1, 1))
        self.entry('02-second', 'Second\n',
                   edits='edit other.c\nafter ^other\n|newer\n')
        self.success()
        self.assertEqual((self.tree / 'a.c').stat().st_mtime, 1)
        self.assertEqual((self.tree / 'other.c').read_text(),
                         'other\nnewer\n')
        self.assertEqual(self.git('rev-parse', 'prealloc~2'), base)
        self.assertEqual(self.git('status', '--porcelain'), '')

    def test_git_tree(self):
        self.git_tree()
        master = self.git('rev-parse', 'master')
        self.success()
        self.assertEqual(self.git('rev-parse', 'master', 'prealloc~1'),
                         f'{master}\n{master}')
        self.assertEqual(self.git('branch', '--format=%(refname:short)'),
                         'master\nprealloc')
        self.assertEqual(self.git('log', '-1', '--format=%an %ae %cn %ce'),
                         'Jo User jo@example.org Jo User jo@example.org')

    def test_git_tree_of_a_user_without_identity(self):
        self.git_tree()
        self.git('config', '--unset', 'user.name')
        self.success()
        self.assertEqual(self.git('log', '-1', '--format=%an'),
                         'qemu-prealloc')

    def test_hooks_do_not_run(self):
        self.git_tree()
        hook = '#!/bin/sh\ntouch "$(dirname "$0")/ran"\n'
        write(self.tree / '.git/hooks/post-checkout', hook, 0o755)
        write(self.tree / '.git/hooks/reference-transaction', hook, 0o755)
        self.success()
        self.assertFalse((self.tree / '.git/hooks/ran').exists())

    def test_new_base(self):
        self.git_tree()
        self.success()
        self.git('checkout', '-q', 'master')
        write(self.tree / 'other.c', 'changed\n')
        self.git('commit', '-q', '-a', '-m', 'More of their work')
        self.success()
        self.assertEqual(self.git('rev-parse', 'prealloc~1'),
                         self.git('rev-parse', 'master'))

    def test_back_from_another_branch(self):
        self.git_tree()
        self.success()
        tip = self.git('rev-parse', 'prealloc')
        self.git('checkout', '-q', 'master')
        self.success()
        self.assertEqual(self.git('rev-parse', 'HEAD'), tip)

    def test_detached_at_the_tip(self):
        self.success()
        self.git('checkout', '-q', '--detach')
        self.success()
        self.assertEqual(self.git('rev-parse', 'prealloc~1'),
                         self.git('rev-parse', 'pristine'))

    def test_dirty_tree(self):
        self.git_tree()
        write(self.tree / 'other.c', 'changed\n')
        before = self.snapshot()
        self.assertIn('changes that are not committed', self.failure())
        self.assertEqual(self.snapshot(), before)

    def test_untracked_files_stay(self):
        self.git_tree()
        write(self.tree / 'notes', 'mine\n')
        self.success()
        self.assertEqual((self.tree / 'notes').read_text(), 'mine\n')

    def test_untracked_file_in_the_way(self):
        self.git_tree()
        write(self.repository / 'new.c', 'new\n')
        self.entry(files='new.c\n')
        write(self.tree / 'new.c', 'mine\n')
        self.assertIn('new.c', self.failure())
        self.assertEqual((self.tree / 'new.c').read_text(), 'mine\n')
        self.assertEqual(self.git('symbolic-ref', 'HEAD'),
                         'refs/heads/master')
        (self.tree / 'new.c').unlink()
        self.success()

    def test_own_commits_on_the_branch_stay(self):
        self.git_tree()
        self.success()
        write(self.tree / 'other.c', 'changed\n')
        self.git('commit', '-q', '-a', '-m', 'Mine')
        self.assertIn('commits that integrate did not make', self.failure())
        self.git('checkout', '-q', 'master')
        self.assertIn('commits that integrate did not make', self.failure())
        self.assertEqual(self.git('log', '-1', '--format=%s', 'prealloc'),
                         'Mine')

    def test_somebody_elses_branch_of_that_name(self):
        self.git_tree()
        self.git('checkout', '-q', '-b', 'prealloc')
        self.assertIn('was not made by integrate', self.failure())

    def test_checked_out_in_another_work_tree(self):
        self.git_tree()
        self.success()
        self.git('checkout', '-q', 'master')
        self.git('worktree', 'add', '-q', '../second', 'prealloc')
        before = self.git('rev-parse', 'prealloc')
        self.entry(message='Changed\n', edits='edit a.c\ndelete ^#inc\n')
        self.assertIn('is checked out in', self.failure())
        self.assertEqual(self.git('rev-parse', 'prealloc'), before)

    def test_linked_work_tree(self):
        self.git_tree()
        self.git('worktree', 'add', '-q', '--detach', '../second')
        second = self.directory / 'second'
        self.success(tree=second)
        self.assertIn('\nnew\n', (second / 'a.c').read_text())
        self.assertEqual((self.tree / 'a.c').read_text(), SOURCE)

    def test_plain_directory_inside_a_git_tree(self):
        self.git('init', '-q', tree=self.directory)
        self.success()
        self.assertTrue((self.tree / '.git').is_dir())
        self.assertEqual(self.git('branch', tree=self.directory), '')

    def test_applied_by_other_means(self):
        write(self.tree / 'block/file-prealloc.c', '')
        before = self.snapshot()
        self.assertIn('already contains block/file-prealloc.c, nothing '
                      'changed', self.success())
        self.assertEqual(self.snapshot(), before)

    def test_applied_by_other_means_in_git(self):
        write(self.tree / 'block/file-prealloc.c', '')
        self.git_tree()
        self.assertIn('nothing changed', self.success())
        self.assertEqual(self.git('branch', '--format=%(refname:short)'),
                         'master')

    def test_check_of_a_plain_directory(self):
        before = self.snapshot()
        self.assertEqual(self.success('--check'),
                         '01-first: First\nthe series applies\n')
        self.assertEqual(self.snapshot(), before)

    def test_check_of_a_git_tree(self):
        self.git_tree()
        before = self.snapshot()
        self.success('--check')
        self.assertEqual(self.snapshot(), before)
        self.assertEqual(self.git('branch', '--format=%(refname:short)'),
                         'master')

    def test_check_that_fails(self):
        self.entry(edits='edit a.c\nafter nowhere\n|new\n')
        self.assertIn('matches 0 times', self.failure('--check'))

    def test_edits_are_made_on_the_commit_not_on_the_work_tree(self):
        self.git_tree()
        self.git('update-index', '--assume-unchanged', 'other.c')
        write(self.tree / 'other.c', 'hidden change\n')
        self.entry(edits='edit other.c\nafter ^hidden\n|new\n')
        self.assertIn('matches 0 times', self.failure())

    def test_not_a_qemu_tree(self):
        (self.tree / 'VERSION').unlink()
        self.assertIn('not a QEMU source tree', self.failure())

    def test_no_such_directory(self):
        self.assertIn('no such directory',
                      self.failure(tree=self.directory / 'none'))

    def test_git_tree_without_commit(self):
        self.git('init', '-q')
        self.assertIn('no commit to start from', self.failure())

    def test_missing_argument(self):
        result = subprocess.run(
            [sys.executable, str(ROOT / 'scripts' / 'integrate')],
            capture_output=True, check=False, encoding='utf-8')
        self.assertEqual(result.returncode, 2)
        self.assertIn('TREE is missing', result.stderr)

    def test_patches_give_the_same_tree(self):
        copy = self.directory / 'copy'
        shutil.copytree(self.tree, copy)
        self.success()
        patch = self.git('format-patch', '--stdout', 'pristine..prealloc')
        subprocess.run(['patch', '-p1', '--fuzz=0', '-s'], cwd=copy,
                       input=patch + '\n', encoding='utf-8', check=True)
        self.assertEqual((copy / 'a.c').read_text(),
                         (self.tree / 'a.c').read_text())


if __name__ == '__main__':
    main()
