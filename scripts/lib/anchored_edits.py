# SPDX-License-Identifier: GPL-2.0-or-later
"""Small edits of existing files, placed by regular expressions.

One series has to fit several QEMU releases, so an edit is not a diff:
it says which lines it looks for (anchors) and what to do there.  Each
anchor has to match exactly once, and where releases differ the edit
lists alternatives of which exactly one has to fit.  Anything else is
an error, never a guess.  series/README.md describes the format.
"""

import re
from dataclasses import dataclass, field
from typing import Optional


class SyntaxProblem(Exception):
    """The edits file itself is wrong."""


class EditProblem(Exception):
    """A correct edit does not fit the tree."""


class _Misfit(Exception):
    """Why one alternative does not fit."""


@dataclass
class Anchor:
    keyword: str
    regex: re.Pattern

    def __str__(self):
        return f"'{self.keyword} {self.regex.pattern}'"


@dataclass
class Condition:
    wanted: bool
    path: str
    regex: re.Pattern

    def __str__(self):
        keyword = 'if' if self.wanted else 'unless'
        return f"'{keyword} {self.path} {self.regex.pattern}'"


@dataclass
class Alternative:
    line: int
    path: str
    conditions: list = field(default_factory=list)
    scope_in: Optional[Anchor] = None
    scope_to: Optional[Anchor] = None
    action: Optional[Anchor] = None
    count: int = 1
    range_end: Optional[Anchor] = None
    text: list = field(default_factory=list)


@dataclass
class Edit:
    where: str
    path: str
    alternatives: list


# --- reading an edits file -------------------------------------------------

INSERTIONS = ('before', 'after')
RANGES = ('replace', 'delete')
ACTIONS = INSERTIONS + RANGES + ('substitute', 'nothing')
END_OF_FUNCTION = '^}'


def parse(content, name):
    """Return the edits in CONTENT; NAME is used in error messages."""
    return _Parser(name).parse(content)


class _Parser:
    def __init__(self, name):
        self.name = name
        self.line = 0
        self.edits = []
        self.current = None

    def parse(self, content):
        for line in content.split('\n'):
            self.line += 1
            if line.startswith('|'):
                self._text(line[1:])
            elif line.strip() and not line.startswith('#'):
                self._directive(line)
        self._finish_alternative()
        return self.edits

    def _fail(self, message, line=None):
        raise SyntaxProblem(f'{self.name}:{line or self.line}: {message}')

    def _directive(self, line):
        keyword, _, operand = line.partition(' ')
        handler = self._handlers().get(keyword)
        if handler is None:
            self._fail(f"unknown word '{keyword}'")
        if keyword != 'edit' and self.current is None:
            self._fail(f"'{keyword}' before the first 'edit FILE'")
        if bool(operand) == (keyword in ('or', 'nothing')):
            self._fail(f"'{keyword}' takes no operand" if operand
                       else f"'{keyword}' needs an operand")
        handler(keyword, operand)

    def _handlers(self):
        handlers = {
            'edit': self._edit, 'or': self._or, 'file': self._file,
            'if': self._condition, 'unless': self._condition,
            'in': self._scope_in, 'to': self._scope_to,
            'through': self._range_end, 'until': self._range_end,
        }
        handlers.update((action, self._action) for action in ACTIONS)
        return handlers

    def _regex(self, pattern):
        try:
            return re.compile(pattern)
        except re.error as error:
            return self._fail(f"bad expression '{pattern}': {error}")

    def _path(self, path):
        if not is_safe_path(path):
            self._fail(f"'{path}' is not a path inside the tree")
        return path

    def _edit(self, _keyword, path):
        self._finish_alternative()
        edit = Edit(f'{self.name}:{self.line}', self._path(path), [])
        self.edits.append(edit)
        self._start_alternative()

    def _or(self, _keyword, _operand):
        self._finish_alternative()
        self._start_alternative()

    def _start_alternative(self):
        edit = self.edits[-1]
        self.current = Alternative(self.line, edit.path)
        edit.alternatives.append(self.current)

    def _before_action(self, keyword):
        if self.current.action:
            self._fail(f"'{keyword}' has to come before the action")

    def _file(self, keyword, path):
        self._before_action(keyword)
        self.current.path = self._path(path)

    def _condition(self, keyword, operand):
        self._before_action(keyword)
        path, _, pattern = operand.partition(' ')
        if not pattern:
            self._fail(f"'{keyword}' needs a file and an expression")
        self.current.conditions.append(
            Condition(keyword == 'if', self._path(path),
                      self._regex(pattern)))

    def _scope_in(self, keyword, pattern):
        self._before_action(keyword)
        if self.current.scope_in:
            self._fail("a second 'in'")
        self.current.scope_in = Anchor(keyword, self._regex(pattern))

    def _scope_to(self, keyword, pattern):
        self._before_action(keyword)
        if not self.current.scope_in or self.current.scope_to:
            self._fail("'to' has to follow an 'in'")
        self.current.scope_to = Anchor(keyword, self._regex(pattern))

    def _action(self, keyword, operand):
        if self.current.action:
            self._fail("a second action; start a new 'edit' or an 'or'")
        if keyword == 'substitute':
            count, _, operand = operand.partition(' ')
            if not re.fullmatch('[1-9][0-9]*', count) or not operand:
                self._fail("'substitute' needs a count and an expression")
            self.current.count = int(count)
        self.current.action = Anchor(keyword, self._regex(operand))

    def _range_end(self, keyword, pattern):
        action = self.current.action
        if not action or action.keyword not in RANGES:
            self._fail(f"'{keyword}' has to follow 'replace' or 'delete'")
        if self.current.range_end or self.current.text:
            self._fail(f"misplaced '{keyword}'")
        self.current.range_end = Anchor(keyword, self._regex(pattern))

    def _text(self, text):
        if not self.current or not self.current.action:
            self._fail('text without an action before it')
        self.current.text.append(text)

    def _finish_alternative(self):
        alternative = self.current
        if alternative is None:
            return
        problem = _incomplete(alternative)
        if problem:
            self._fail(problem, alternative.line)


def _incomplete(alternative):
    """Say what is wrong with a finished alternative, or return None."""
    if not alternative.action:
        return 'an edit without an action'
    keyword = alternative.action.keyword
    lines = len(alternative.text)
    if keyword == 'nothing' and alternative.scope_in:
        return "'nothing' takes no scope"
    if keyword == 'nothing' and not alternative.conditions:
        return "'nothing' needs a condition"
    if keyword in ('nothing', 'delete') and lines:
        return f"'{keyword}' takes no text"
    if keyword in ('before', 'after', 'replace') and not lines:
        return f"'{keyword}' needs text"
    if keyword == 'substitute' and lines != 1:
        return "'substitute' needs exactly one line of text"
    return None


def is_safe_path(path):
    """Is PATH relative, without white space, and does it stay inside?"""
    parts = path.split('/')
    return not re.search(r'\s', path) and not {'', '.', '..'} & set(parts)


# --- applying edits --------------------------------------------------------

def apply(edit, tree):
    """Apply EDIT to TREE, which has read(path) and write(path, text).

    read() returns None for a file that does not exist.
    """
    fitting = []
    reasons = []
    for alternative in edit.alternatives:
        try:
            fitting.append((alternative, _result(alternative, tree)))
        except _Misfit as misfit:
            reasons.append((alternative, str(misfit)))
    if not fitting:
        raise EditProblem(_explain_none(edit, reasons))
    if len(fitting) > 1:
        lines = ' and '.join(str(fit.line) for fit, _ in fitting)
        raise EditProblem(f'{edit.where}: {edit.path}: more than one '
                          f'alternative fits (those of lines {lines})')
    alternative, text = fitting[0]
    if text is not None:
        tree.write(alternative.path, text)


def _explain_none(edit, reasons):
    if len(reasons) == 1:
        return f'{edit.where}: {edit.path}: {reasons[0][1]}'
    lines = [f'{edit.where}: {edit.path}: no alternative fits']
    for alternative, reason in reasons:
        lines.append(f'  line {alternative.line}: {alternative.path}: '
                     f'{reason}')
    return '\n'.join(lines)


def _result(alternative, tree):
    """Return the new text of the alternative's file, None for as it is."""
    for condition in alternative.conditions:
        if _has_line(tree, condition) != condition.wanted:
            raise _Misfit(f'{condition} does not hold')
    if alternative.action.keyword == 'nothing':
        return None
    text = tree.read(alternative.path)
    if text is None:
        raise _Misfit('no such file in this tree')
    lines = text.split('\n')
    scope = _scope(alternative, lines)
    if alternative.action.keyword == 'substitute':
        _substitute(alternative, lines, scope)
    else:
        _edit_lines(alternative, lines, scope)
    return '\n'.join(lines)


def _has_line(tree, condition):
    text = tree.read(condition.path)
    return text is not None and any(condition.regex.search(line)
                                    for line in text.split('\n'))


def _scope(alternative, lines):
    # A text that ends with a newline has no line after it.
    end = len(lines) - 1 if lines[-1] == '' else len(lines)
    if not alternative.scope_in:
        return range(0, end)
    start = _only(alternative.scope_in, lines, range(0, end))
    scope_to = alternative.scope_to or Anchor('to',
                                              re.compile(END_OF_FUNCTION))
    return range(start, _next(scope_to, lines, range(start + 1, end)) + 1)


def _only(anchor, lines, where):
    """Return the only line that matches."""
    found = [i for i in where if anchor.regex.search(lines[i])]
    if len(found) != 1:
        numbers = ', '.join(str(i + 1) for i in found[:10])
        raise _Misfit(f'{anchor} matches {len(found)} times'
                      + (f' (lines {numbers})' if found else '')
                      + ', expected 1')
    return found[0]


def _next(anchor, lines, where):
    """Return the first line that matches."""
    for i in where:
        if anchor.regex.search(lines[i]):
            return i
    raise _Misfit(f'{anchor} matches 0 times after the start')


def _edit_lines(alternative, lines, scope):
    action = alternative.action
    start = _only(action, lines, scope)
    end = start + 1
    if action.keyword == 'before':
        end = start
    elif action.keyword == 'after':
        start = end
    elif alternative.range_end:
        end = _next(alternative.range_end, lines,
                    range(start + 1, scope.stop))
        if alternative.range_end.keyword == 'through':
            end += 1
    lines[start:end] = alternative.text


def _substitute(alternative, lines, scope):
    total = 0
    for i in scope:
        try:
            lines[i], count = alternative.action.regex.subn(
                alternative.text[0], lines[i])
        except (re.error, IndexError) as error:
            raise _Misfit(f"bad replacement '{alternative.text[0]}': "
                          f'{error}') from error
        total += count
    if total != alternative.count:
        raise _Misfit(f'{alternative.action} matches {total} times, '
                      f'expected {alternative.count}')
