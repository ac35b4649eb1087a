# SPDX-License-Identifier: GPL-2.0-or-later
"""Run the project's tests, suite by suite (started by scripts/check).

  (no option)  everything that has to be green before a change lands
  --quick      what answers in under 5 minutes, for daily work
  --full       also what takes long; keeps its summary in docs/results
  SUITE...     only these of them; with --full, what the summary has of the
               same source stays in it, so that it can be made in parts

Most suites are meson's (the meson.build files below tests/); "build" builds
QEMU, "limits" measures. What a suite printed is in build/check/SUITE.log.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import NamedTuple

from source_state import source_hash

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / 'build'
LOGS = BUILD / 'check'
SUMMARY = ROOT / 'docs' / 'results' / 'check-full.md'

HEARTBEAT = 60          # seconds between signs of life
TAIL = 40               # lines of a failed suite's log
REASONS = 5             # of failed cases of a test program


class Result(NamedTuple):
    suite: str
    passed: int
    failed: int
    seconds: float


def say(text=''):
    print(text, flush=True)


def log_of(suite):
    return LOGS / f'{suite}.log'


def last_lines(path, count):
    return path.read_text(errors='replace').splitlines()[-count:]


def run(suite, *command):
    """Run a command with its output in the suite's log; True if it worked."""
    with open(log_of(suite), 'a') as log:
        print('$', *command, file=log, flush=True)
        process = subprocess.Popen([str(word) for word in command], cwd=ROOT,
                                   stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=subprocess.STDOUT)
        start = time.monotonic()
        while True:
            try:
                return process.wait(HEARTBEAT) == 0
            except subprocess.TimeoutExpired:
                minutes = (time.monotonic() - start) / 60
                line = ''.join(last_lines(log_of(suite), 1))
                say(f'  {suite}: {minutes:.0f} min: {line[:100]}')


def say_reasons(program):
    """What a test program with failed cases said of the first of them, in
    lines of TAP, and what it said before it ended early."""
    said = re.findall(r'^not ok .*\n(?:#.*\n)*',
                      program.findtext('system-out') or '', re.M)
    said = ''.join(said[:REASONS]) + (program.findtext('system-err') or '')
    for line in said.splitlines()[:TAIL]:
        say(f'  | {line}')


def junit_counts(path):
    """Passed and failed test cases; one that was skipped has failed."""
    passed = failed = 0
    for program in xml.etree.ElementTree.parse(path).iter('testsuite'):
        cases = list(program.iter('testcase'))
        bad = [case for case in cases
               if any(case.find(tag) is not None
                      for tag in ('failure', 'error', 'skipped'))]
        passed += len(cases) - len(bad)
        failed += len(bad)
        for case in bad:
            say(f'  FAILED: {case.get("classname")}: {case.get("name")}')
        if bad:
            say_reasons(program)
    return passed, failed


def meson_suite(suite):
    """One of meson's suites, each of its cases counted."""
    report = BUILD / 'meson-logs' / f'{suite}.junit.xml'
    report.unlink(missing_ok=True)
    worked = run(suite, 'meson', 'test', '-C', BUILD, '--suite', suite,
                 '--logbase', suite, '--print-errorlogs', '--verbose')
    if not report.exists():
        return 0, 1
    passed, failed = junit_counts(report)
    if passed + failed == 0 or (not worked and not failed):
        failed += 1
    return passed, failed


def build_suite(suite, builds):
    """QEMU with and without the series; a build is a case."""
    passed = failed = 0
    for version, variant in builds:
        worked = run(suite, 'scripts/build-qemu', '--version', version,
                     '--only', variant)
        passed += worked
        failed += not worked
        if not worked:
            say(f'  FAILED: build of {version} {variant}')
    return passed, failed


def check_build(suite):
    return build_suite(suite, [(version, variant)
                               for version in ('7.2', '10.0', '10.2')
                               for variant in ('stock', 'patched')])


# The limits that the series has to keep, each one run of scripts/bench.
LIMITS = [
    # Without fallocate(2), against stock's full, the faster of its modes
    *(f'--target fuse --latency-us 1000 --op create --mode {mode} '
      '--stock-mode full --size 256 --limit 15'
      for mode in ('falloc', 'full', 'auto')),
    # Local disks
    *(f'--target {target} --op create --mode full --size 512 --limit {limit}'
      for target, limit in (('ext4', 1.3), ('xfs', 1.3), ('ext3', 0.9),
                            ('btrfs', 0.9))),
    # convert: as fast as -S 0 where all is written, else as stock's falloc
    *(f'--target {target} --op convert --mode {mode} --stock-mode S0 '
      f'--format {fmt} --size 256 --limit 0.95'
      for target in ('fuse', 'ext3') for mode in ('falloc', 'full', 'auto')
      for fmt in ('raw', 'qcow2')),
    *(f'--target {target} --op convert --mode {mode} --stock-mode falloc '
      f'--format {fmt} --size 256 --limit 0.95'
      for target in ('ext4', 'xfs') for mode in ('falloc', 'auto')
      for fmt in ('raw', 'qcow2')),
]


def check_limits(suite):
    """What must be measured, not counted; wants an idle machine."""
    passed = failed = 0
    for limit in LIMITS:
        worked = run(suite, 'scripts/bench', '--qemu', '7.2',
                     *limit.split())
        passed += worked
        failed += not worked
        if not worked:
            say(f'  FAILED: scripts/bench {limit}')
    return passed, failed


QUICK = {suite: meson_suite for suite in
         ('unit', 'sanitizers', 'integrate', 'targets')}
DEFAULT = {**QUICK, 'mutants': meson_suite, 'build': check_build,
           **{suite: meson_suite for suite in
              ('series', 'e2e', 'cases', 'modes', 'iotests')}}
FULL = {**DEFAULT,
        **{suite: meson_suite for suite in
           ('e2e-10', 'cases-10', 'modes-10', 'iotests-all')},
        'limits': check_limits}


def run_suite(suite, function):
    say(f'{suite} ...')
    log_of(suite).unlink(missing_ok=True)
    start = time.monotonic()
    passed, failed = function(suite)
    seconds = time.monotonic() - start
    say(f'{suite}: {passed} passed, {failed} failed, {seconds / 60:.1f} min')
    if failed:
        say('\n'.join('  | ' + line for line in
                      last_lines(log_of(suite), TAIL)))
        say(f'  the whole log: {log_of(suite)}')
    return Result(suite, passed, failed, seconds)


def configure():
    """The project's own build directory, and all that the tests run."""
    if not (BUILD / 'build.ninja').exists():
        if not run('configure', 'meson', 'setup', BUILD):
            return False
    return run('configure', 'meson', 'compile', '-C', BUILD)


def table(results):
    yield '| suite | passed | failed | minutes |'
    yield '|---|---:|---:|---:|'
    for r in results:
        yield f'| {r.suite} | {r.passed} | {r.failed} | {r.seconds / 60:.1f} |'
    minutes = sum(r.seconds for r in results) / 60
    yield (f'| all | {sum(r.passed for r in results)} '
           f'| {sum(r.failed for r in results)} | {minutes:.1f} |')


def summary_results(source):
    """What the summary says of that source, {suite: Result}."""
    text = SUMMARY.read_text() if SUMMARY.exists() else ''
    if f'Source: {source} ' not in text:
        return {}
    rows = re.findall(r'^\| (\S+) \| (\d+) \| (\d+) \| ([\d.]+) \|$', text,
                      re.M)
    return {suite: Result(suite, int(passed), int(failed), 60 * float(minutes))
            for suite, passed, failed, minutes in rows if suite in FULL}


def write_summary(results):
    source = source_hash()
    known = {**summary_results(source), **{r.suite: r for r in results}}
    missing = [suite for suite in FULL if suite not in known]
    SUMMARY.parent.mkdir(parents=True, exist_ok=True)
    SUMMARY.write_text('\n'.join([
        '<!-- SPDX-License-Identifier: GPL-2.0-or-later -->',
        '# scripts/check --full', '',
        f'{datetime.date.today()}, Linux {os.uname().release}, '
        f'{os.cpu_count()} processors.',
        f'Source: {source} (`git ls-files -s -- . ":!docs/results" | '
        'git hash-object --stdin`)', '',
        *table([known[suite] for suite in FULL if suite in known]), '',
        *([f'Not run with this source: {", ".join(missing)}.', '']
          if missing else [])]))
    say(f'summary: {SUMMARY}')


def parse_args():
    parser = argparse.ArgumentParser(
        prog='scripts/check', description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    group = parser.add_mutually_exclusive_group()
    group.add_argument('--quick', action='store_true')
    group.add_argument('--full', action='store_true')
    parser.add_argument('suites', nargs='*', metavar='SUITE')
    args = parser.parse_args()
    every = QUICK if args.quick else FULL if args.full else DEFAULT
    unknown = [suite for suite in args.suites if suite not in every]
    if unknown:
        parser.error(f'no such suite: {" ".join(unknown)}; there are: '
                     f'{" ".join(every)}')
    args.functions = {suite: function for suite, function in every.items()
                      if not args.suites or suite in args.suites}
    return args


def main():
    args = parse_args()
    LOGS.mkdir(parents=True, exist_ok=True)
    if not configure():
        say('\n'.join(last_lines(log_of('configure'), TAIL)))
        say(f'cannot build the tests; the whole log: {log_of("configure")}')
        say('0 passed, 1 failed')
        return 1
    results = [run_suite(*item) for item in args.functions.items()]
    say()
    say('\n'.join(table(results)))
    if args.full:
        write_summary(results)
    failed = sum(r.failed for r in results)
    say(f'{sum(r.passed for r in results)} passed, {failed} failed')
    return 1 if failed else 0


sys.exit(main())
