# SPDX-License-Identifier: GPL-2.0-or-later
"""File systems to test preallocation on, as context managers.

    from targets import Target, run_in_namespace

    run_in_namespace()                  # at the top of a test program
    with Target.mount('fuse', latency_us=1000) as t:
        ...                             # t.dir is the mount
        print(t.stats()['write'])

Everything lives in a directory of its own under build/targets. As root the
test program runs in a mount and PID namespace: whatever way it ends, the
kernel stops its processes, unmounts its file systems and detaches its loop
devices. What stays behind (image files, or a user's FUSE mount) is removed
at the next start, recognized by a lock that its owner no longer holds.
"""
import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get('PREALLOC_BUILD', REPOSITORY / 'build'))
BASE = BUILD.resolve() / 'targets'
NOFALLOC_FS = BUILD.resolve() / 'tests' / 'targets' / 'nofalloc-fs'

MIB = 1 << 20
IN_NAMESPACE = 'PREALLOC_TARGETS_NAMESPACE'
MOUNT_TIMEOUT = 20


class TargetError(Exception):
    """A target could not be made; says why in one line."""


def is_root():
    return os.geteuid() == 0


def run(*command):
    """Run a command, with its output in the exception if it fails."""
    result = subprocess.run([str(word) for word in command],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, text=True,
                            errors='replace')
    if result.returncode != 0:
        raise TargetError(f'{" ".join(map(str, command))}: exit status '
                          f'{result.returncode}: {result.stdout.strip()}')
    return result.stdout


# ---- namespace -----------------------------------------------------------

def run_in_namespace():
    """As root, run this program again in namespaces that die with it.

    Not as an ordinary user, who would see himself as root in there. Then
    fusermount3 mounts, and the server unmounts when its test has died.
    """
    if not is_root() or os.environ.get(IN_NAMESPACE):
        return
    os.environ[IN_NAMESPACE] = '1'
    sys.stdout.flush()
    os.execvp('unshare', ['unshare', '--mount', '--propagation', 'private',
                          '--pid', '--fork', '--kill-child', '--mount-proc',
                          sys.executable] + sys.argv)


# ---- directories of our own ----------------------------------------------

_workspace = None


class Workspace:
    """A directory under build/targets, locked while its owner lives."""

    def __init__(self):
        BASE.mkdir(parents=True, exist_ok=True)
        self.dir = Path(tempfile.mkdtemp(prefix='run-', dir=BASE))
        self.lock = os.open(self.dir / 'lock', os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.targets = 0

    def new_dir(self, name):
        self.targets += 1
        path = self.dir / f'{self.targets}-{name}'
        path.mkdir()
        return path


def workspace():
    global _workspace
    if _workspace is None:
        remove_stale()
        _workspace = Workspace()
    return _workspace


def remove_workspace():
    """Remove this process's directory; all targets must be unmounted."""
    global _workspace
    if _workspace is None:
        return
    _remove_tree(_workspace.dir)
    os.close(_workspace.lock)
    _workspace = None


def _unescape(path):
    """/proc/mounts writes white space and backslash as octal numbers."""
    for char in ' \t\n\\':
        path = path.replace(f'\\{ord(char):03o}', char)
    return Path(path)


def mounts_below(directory):
    """Mount points at or below a directory, the innermost first."""
    points = [_unescape(line.split()[1])
              for line in Path('/proc/self/mounts').read_text().splitlines()]
    below = [p for p in points if p == directory or directory in p.parents]
    return sorted(below, key=lambda p: len(p.parts), reverse=True)


def _remove_tree(directory):
    if mounts_below(directory):
        raise TargetError(f'{directory}: still has mounts')
    shutil.rmtree(directory)


def _loop_devices(directory):
    """Loop devices whose backing file lies below a directory.

    In a chroot the kernel may name the file from the real root on.
    """
    for file in Path('/sys/block').glob('loop*/loop/backing_file'):
        with contextlib.suppress(OSError):
            backing = file.read_text().strip()
            if f'{directory}/' in backing:
                yield Path('/dev') / file.parts[3]


def _is_stale(directory):
    """No lock file yet means that its owner is just making it."""
    try:
        lock = os.open(directory / 'lock', os.O_RDWR)
    except OSError:
        return time.time() - directory.stat().st_mtime > 60
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _remove_stale_dir(directory):
    for point in mounts_below(directory):
        if is_root():
            run('umount', '--lazy', point)
        else:
            run('fusermount3', '-u', '-z', point)
    if is_root():
        for device in _loop_devices(directory):
            run('losetup', '--detach', device)
    _remove_tree(directory)


def remove_stale():
    """Remove what test programs that are no more have left, if it is ours."""
    for directory in BASE.glob('run-*'):
        try:
            mine = directory.stat().st_uid == os.geteuid()
            if mine and _is_stale(directory):
                _remove_stale_dir(directory)
        except FileNotFoundError:
            pass                # another program removed it first


# ---- targets -------------------------------------------------------------

class Target:
    """A mounted file system. Subclasses fill in _mount and _unmount."""

    has_fallocate = True        # fallocate(2) mode 0 works
    has_o_direct = True

    def __init__(self, name, size_mib):
        self.name = name
        self.size_mib = size_mib
        self.work = None
        self.dir = None

    @staticmethod
    @contextlib.contextmanager
    def mount(name, at=None, size_mib=None, **options):
        """Mount target NAME, at a directory of ours or the given one."""
        target = _make(name, size_mib, options)
        target.work = workspace().new_dir(name)
        target.dir = Path(at).resolve() if at else target.work / 'mnt'
        target.dir.mkdir(exist_ok=True)
        try:
            target._mount()
            yield target
        finally:
            try:
                target._unmount()
            finally:
                _remove_tree(target.work)

    def free_bytes(self):
        st = os.statvfs(self.dir)
        return st.f_bfree * st.f_frsize

    def fill(self, leave):
        """Write a file until at most LEAVE bytes (or a block) are free."""
        with open(self.dir / '.filler', 'ab', buffering=0) as filler:
            while True:
                surplus = self.free_bytes() - leave
                if surplus < os.statvfs(self.dir).f_frsize:
                    return
                _append_zeros(filler, surplus)


def _append_zeros(file, size):
    """Write, as zeros take space on every file system; the last step is
    synchronous, as only then is the free space exact."""
    zeros = bytes(MIB)
    # Metadata takes space too: come near first, then go on by what is left.
    size = size if size < MIB else size - size // 64
    try:
        while size > 0:
            size -= file.write(zeros[:min(size, MIB)])
        os.fsync(file.fileno())
    except OSError as error:
        raise TargetError(f'cannot fill the file system: {error}') from error


def _umount(point):
    """Unmount as soon as nobody uses it; a writer may just be closing."""
    for attempt in range(50):
        if point not in mounts_below(point):
            return
        try:
            if is_root():
                run('umount', point)
            else:
                run('fusermount3', '-u', point)
        except TargetError:
            if attempt == 49:
                raise
            time.sleep(0.1)


def check_built():
    if not NOFALLOC_FS.exists():
        raise TargetError(f'{NOFALLOC_FS}: not built; run: '
                          'meson setup build && ninja -C build')


class FuseTarget(Target):
    """nofalloc-fs over a tmpfs of ours (a directory if not root)."""

    has_fallocate = False

    def __init__(self, name, size_mib, options):
        super().__init__(name, size_mib)
        self.backing = options.pop('backing', None)
        self.options = options
        self.server = None
        self.has_fallocate = options.get('fallocate') == 'ok'
        self.has_o_direct = str(options.get('refuse_o_direct', 0)) == '0'

    def _mount(self):
        check_built()
        if self.backing is None:
            self._make_backing()
        self._start_server()
        self._wait_until_mounted()

    def _make_backing(self):
        self.backing = self.work / 'backing'
        self.backing.mkdir()
        if is_root():
            size = f'{self.size_mib}m' if self.size_mib else '80%'
            run('mount', '-t', 'tmpfs', '-o', f'size={size},mode=755',
                'nofalloc-backing', self.backing)
        elif self.size_mib:
            raise TargetError('fuse: size_mib needs root (use quota)')

    def _start_server(self):
        command = [NOFALLOC_FS, self.backing, self.dir, '-f']
        for key, value in self.options.items():
            command += ['-o', f'{key}={value}']
        if not is_root():
            # No namespace would end it with us; it unmounts on SIGTERM.
            command = ['setpriv', '--pdeathsig', 'TERM'] + command
        self.log = self.work / 'server.log'
        with open(self.log, 'wb') as log:
            self.server = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log)

    def _wait_until_mounted(self):
        deadline = time.monotonic() + MOUNT_TIMEOUT
        while not (self.dir / '.stats').exists():
            if self.server.poll() is not None:
                raise TargetError(
                    f'nofalloc-fs ended: {self.log.read_text().strip()}')
            if time.monotonic() > deadline:
                raise TargetError('nofalloc-fs did not mount in time')
            time.sleep(0.01)

    def _unmount(self):
        mounted = self.dir in mounts_below(self.dir)
        _umount(self.dir)
        status = self._wait_for_server(mounted)
        if self.backing and self.work in Path(self.backing).parents:
            _umount(Path(self.backing))
        if mounted and status != 0:
            raise TargetError(f'nofalloc-fs: exit status {status}: '
                              f'{self.log.read_text().strip()}')

    def _wait_for_server(self, was_mounted):
        if not self.server:
            return None
        if not was_mounted:
            self.server.terminate()
        return self.server.wait(MOUNT_TIMEOUT)

    def stats(self):
        """The counters, as a dictionary."""
        return json.loads((self.dir / '.stats').read_text())

    def reset(self):
        """Set the counters to zero and forget which bytes were written."""
        (self.dir / '.reset').write_text('1')

    def control(self, **settings):
        """Change settings of the mounted file system."""
        lines = [f'{key}={value}\n' for key, value in settings.items()]
        (self.dir / '.control').write_text(''.join(lines))


# mkfs must not discard: that would punch holes into the allocated image.
# -m 0: root may not use more than others, so "full" means the same to both.
# -b 4096: small file systems get 1 KiB blocks, users' images never do.
_EXT = ['-q', '-F', '-m', '0', '-b', '4096', '-E',
        'nodiscard,lazy_itable_init=0,lazy_journal_init=0']

LOOP_TARGETS = {
    # name: (mkfs command, mount type, mount options, has fallocate)
    'ext2': (['mkfs.ext2'] + _EXT, 'ext2', 'noatime', False),
    'ext3': (['mkfs.ext3'] + _EXT, 'ext3', 'noatime', False),
    'ext4-noextent': (['mkfs.ext4', '-O', '^extent,^64bit'] + _EXT, 'ext4',
                      'noatime', False),
    'ext4': (['mkfs.ext4'] + _EXT, 'ext4', 'noatime', True),
    'xfs': (['mkfs.xfs', '-q', '-f', '-K'], 'xfs', 'noatime', True),
    'btrfs': (['mkfs.btrfs', '-q', '-f', '-K'], 'btrfs',
              'noatime,nodiscard', True),
}

LOOP_SIZE_MIB = 320             # mkfs.xfs refuses less than 300


def _write_image(path, size):
    """A written file: the loop device then neither allocates nor converts."""
    run('dd', 'if=/dev/zero', f'of={path}', 'bs=1M', f'count={size}',
        'conv=fsync', 'status=none')
    # Keep its pages out of the cache that direct I/O will bypass.
    with open(path, 'rb') as image:
        os.posix_fadvise(image.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class LoopTarget(Target):
    """A file system on a loop device with direct I/O."""

    def __init__(self, name, size_mib):
        super().__init__(name, size_mib or LOOP_SIZE_MIB)
        self.mkfs, self.type, self.mount_options, self.has_fallocate = \
            LOOP_TARGETS[name]
        self.device = None
        self.direct_io = False

    def _mount(self):
        image = self.work / 'image'
        _write_image(image, self.size_mib)
        run(*self.mkfs, image)
        self.device = self._attach(image)
        try:
            run('mount', '-t', self.type, '-o', self.mount_options,
                self.device, self.dir)
        finally:
            # A device in use is detached by the kernel with its last user.
            run('losetup', '--detach', self.device)

    def _attach(self, image):
        attach = ['losetup', '--find', '--show']
        try:
            device = run(*attach, '--direct-io=on', image)
            self.direct_io = True
        except TargetError as error:
            print(f'# {self.name}: loop device without direct I/O: {error}',
                  file=sys.stderr)
            device = run(*attach, image)
        return Path(device.strip())

    def _unmount(self):
        _umount(self.dir)


class TmpfsTarget(Target):
    def _mount(self):
        size = f'{self.size_mib}m' if self.size_mib else '80%'
        run('mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', self.dir)

    def _unmount(self):
        _umount(self.dir)


NAMES = ['fuse', 'tmpfs'] + list(LOOP_TARGETS)


def _make(name, size_mib, options):
    if name == 'fuse':
        return FuseTarget(name, size_mib, options)
    if name not in NAMES:
        raise TargetError(f'unknown target {name}; there are: '
                          f'{" ".join(NAMES)}')
    if options:
        raise TargetError(f'{name} takes no option {", ".join(options)}')
    if not is_root():
        raise TargetError(f'{name} needs root')
    if not os.environ.get(IN_NAMESPACE):
        raise TargetError('call run_in_namespace() first')
    if name == 'tmpfs':
        return TmpfsTarget(name, size_mib)
    return LoopTarget(name, size_mib)


# ---- what a file occupies ------------------------------------------------

def allocated(path):
    """Bytes that a file occupies on its file system."""
    return os.stat(path).st_blocks * 512


def fincore(path):
    """Bytes of a file that are in the page cache."""
    output = run('fincore', '--bytes', '--noheadings', '--output', 'RES',
                 path)
    return int(output.split()[0])
