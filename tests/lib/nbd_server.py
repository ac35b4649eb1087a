# SPDX-License-Identifier: GPL-2.0-or-later
"""A qemu-nbd that serves a raw image for the length of a with statement."""
import contextlib
import subprocess
import time
from pathlib import Path

START_TIMEOUT = 60          # seconds
TERM_INTERVAL = 0.2


class NbdServerError(Exception):
    pass


def _wait_for(server, socket):
    deadline = time.monotonic() + START_TIMEOUT
    while not socket.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            raise NbdServerError(f'qemu-nbd does not serve {socket}')
        time.sleep(0.005)


def _end(server):
    """qemu-nbd loses a SIGTERM that comes before its main loop begins."""
    while server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(TERM_INTERVAL)


@contextlib.contextmanager
def nbd_server(program, directory, image):
    """Serve the file IMAGE of a directory at DIRECTORY/socket."""
    socket = Path(directory) / 'socket'
    server = subprocess.Popen(
        [program, '-f', 'raw', '-t', '-k', socket, image], cwd=directory,
        stdin=subprocess.DEVNULL)
    try:
        _wait_for(server, socket)
        yield
    finally:
        _end(server)
        socket.unlink(missing_ok=True)
