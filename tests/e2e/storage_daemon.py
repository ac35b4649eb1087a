# SPDX-License-Identifier: GPL-2.0-or-later
"""A qemu-storage-daemon that tests tell by QMP what to do."""
import json
import subprocess
import time

from e2e import patched


class QmpError(Exception):
    """A command was answered with an error."""


class StorageDaemon:
    """A running qemu-storage-daemon of the patched build.

    It gets the words given to its command line, and has an iothread named
    thread.
    """

    def __init__(self, *words):
        self.process = subprocess.Popen(
            [str(word) for word in patched.storage_daemon(
                '--object', 'iothread,id=thread', *words,
                '--chardev', 'stdio,id=qmp', '--monitor', 'chardev=qmp')],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._receive()             # the greeting
        self.execute('qmp_capabilities')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.execute('quit')
        self.process.communicate()

    def _receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError('qemu-storage-daemon ended')
        return json.loads(line)

    def execute(self, command, **arguments):
        """Returns the answer; events are dropped."""
        self.process.stdin.write(json.dumps(
            {'execute': command, 'arguments': arguments}).encode() + b'\n')
        self.process.stdin.flush()
        while True:
            answer = self._receive()
            if 'error' in answer:
                raise QmpError(f'{command}: {answer["error"]}')
            if 'return' in answer:
                return answer['return']

    def run_job(self, command, meanwhile=lambda: time.sleep(0.001),
                **arguments):
        """Run a job to its end; returns its error, or None.

        Calls MEANWHILE as long as the job runs.
        """
        self.execute(command, **{'job-id': 'job', **arguments})
        while True:
            state = self.execute('query-jobs')[0]
            if state['status'] == 'concluded':
                self.execute('job-dismiss', id='job')
                return state.get('error')
            meanwhile()


def fuse_export(node, mountpoint, *options):
    """Words that export a node, writable, as the file MOUNTPOINT.

    From 9.0 on a node may be used by several threads, and the export gets
    one of its own. In the main thread, stock 10.2 waits for ever: a write
    of the export polls, the job that this starts drains the node, and that
    waits for the write. (Any blockdev-create does, preallocation=off too.)
    """
    mountpoint.touch()
    settings = ['type=fuse', 'id=export', f'node-name={node}',
                f'mountpoint={mountpoint}', 'writable=on', *options]
    if patched.version() >= (9, 0):
        settings.append('iothread=thread')
    return '--export', ','.join(settings)
