# SPDX-License-Identifier: GPL-2.0-or-later
"""One cell of the mode matrix: a format or driver, an operation and a
preallocation mode, done by one build of QEMU; and what came of it.

Used by scripts/mode-matrix, which prints all cells, and by test_modes.py,
which says how they may differ between the stock and the patched build.
Commands run in the directory of the image, so messages hold no paths.
"""
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
sys.path[:0] = [str(REPOSITORY / 'tests' / name)
                for name in ('e2e', 'targets')]

from e2e import Result, again, run  # noqa: E402
import targets  # noqa: E402
from nbd_server import nbd_server  # noqa: E402
from targets import MIB, Target, TargetError  # noqa: E402

VARIANTS = 'stock', 'patched'
MODES = 'off', 'metadata', 'falloc', 'full', 'auto', 'fast'
NO_MODE = 'fast'                # what no build knows
# Names of targets: a file system with fallocate(2), and one without
FILE, FUSE = 'file', 'fuse'

SIZE = 10 * MIB                 # of new images
OLD_SIZE = 2 * MIB              # of images that grow, by SIZE
DATA = {SIZE: 4 * MIB, OLD_SIZE: MIB}
SERVER_TIMEOUT = 20


# ---- rows ------------------------------------------------------------------

class Row(NamedTuple):
    name: str
    format: str = 'raw'
    options: tuple = ()         # of create, convert and measure
    image_opts: str = ''        # how it is opened, if not by its name
    new_file: str = ''          # what create makes, if not the image
    needs: tuple = ()           # files that are there before, of its size
    served_by: str = ''         # what stands between QEMU and the file
    without: tuple = ()         # operations that it does not have
    blockdev: dict = {}         # what QMP needs to create it
    nodes: dict = {}            # files that QMP needs, by node name
    since: tuple = (0,)         # QEMU's version

    def opened_as(self, image):
        opts = self.image_opts or f'driver={self.format},file.filename=IMAGE'
        return opts.replace('IMAGE', image)

    def objects(self):
        if self.format == 'luks':
            return ['--object', 'secret,id=s,data=passphrase']
        return []

    def operations(self):
        return [name for name in OPERATIONS if name not in self.without
                and (name != 'blockdev-create' or self.blockdev)]


LUKS = 'key-secret=s', 'iter-time=10'
LUKS_QMP = {'driver': 'luks', 'file': 'f', 'key-secret': 's', 'iter-time': 10}
OLD_FORMATS = 'vdi', 'vmdk', 'vhdx', 'vpc', 'qed', 'parallels', 'qcow'
NO_CREATION = 'create', 'measure', 'convert', 'blockdev-create'
BACKING = 'backing_file=backing', 'backing_fmt=raw'


def _qcow2(name, *options, nodes=None, needs=(), **qmp):
    return Row(name, 'qcow2', options, needs=needs,
               blockdev={'driver': 'qcow2', 'file': 'f', **qmp},
               nodes={'f': 'image', **(nodes or {})})


def _old_format(name):
    # A VPC disk has else the size that its CHS geometry gives it.
    options = ('force_size=on',) if name == 'vpc' else ()
    if name != 'vdi':           # the others' schemas have no preallocation
        return Row(name, name, options)
    return Row(name, name, blockdev={'driver': 'vdi', 'file': 'f'},
               nodes={'f': 'image'})


ROWS = [
    Row('raw', blockdev={'driver': 'file', 'filename': 'image'}),
    Row('raw, cache.direct=on', without=NO_CREATION,
        image_opts='driver=raw,file.driver=file,file.filename=IMAGE,'
        'file.cache.direct=on'),
    Row('raw on filter preallocate', without=NO_CREATION,
        image_opts='driver=raw,file.driver=preallocate,'
        'file.file.driver=file,file.file.filename=IMAGE'),
    Row('raw on a block device', served_by='loop', without=('measure',),
        image_opts='driver=raw,file.driver=host_device,file.filename=IMAGE'),
    Row('raw on NBD', served_by='nbd', without=('measure',),
        image_opts='driver=raw,file.driver=nbd,file.server.type=unix,'
        'file.server.path=socket'),
    _qcow2('qcow2'),
    _qcow2('qcow2, data_file', 'data_file=data', nodes={'d': 'data'},
           **{'data-file': 'd'}),
    _qcow2('qcow2, data_file_raw', 'data_file=data', 'data_file_raw=on',
           nodes={'d': 'data'}, **{'data-file': 'd', 'data-file-raw': True}),
    _qcow2('qcow2, extended_l2', 'extended_l2=on', **{'extended-l2': True}),
    _qcow2('qcow2, backing file', *BACKING, needs=('backing',),
           **{'backing-file': 'backing', 'backing-fmt': 'raw'}),
    _qcow2('qcow2, extended_l2, backing file', 'extended_l2=on', *BACKING,
           needs=('backing',), **{'extended-l2': True,
                                  'backing-file': 'backing',
                                  'backing-fmt': 'raw'}),
    Row('luks', 'luks', LUKS, 'driver=luks,key-secret=s,file.filename=IMAGE',
        blockdev=LUKS_QMP, nodes={'f': 'image'}),
    Row('luks, detached header', 'luks', (*LUKS, 'detached-header=on'),
        'driver=luks,key-secret=s,file.filename=IMAGE,header.driver=file,'
        'header.filename=header', new_file='header', needs=('image',),
        without=('measure', 'convert'), blockdev={**LUKS_QMP, 'header': 'h'},
        nodes={'f': 'image', 'h': 'header'}, since=(9,)),
    *map(_old_format, OLD_FORMATS),
    Row('vmdk, monolithicFlat', 'vmdk', ('subformat=monolithicFlat',)),
]


# ---- QEMU ------------------------------------------------------------------

class Build:
    """The tools of one build."""

    def __init__(self, directory):
        self.dir = Path(directory).resolve()
        for tool in ('qemu-img', 'qemu-io', 'qemu-nbd', self.daemon()):
            if not (self.dir / tool).exists():
                raise TargetError(f'{self.dir / tool}: not built; run: '
                                  'scripts/build-qemu')
        line = run([self.tool('qemu-img'), '--version']).out.splitlines()[0]
        self.version_line = line
        self.version = tuple(int(word) for word in
                             line.split()[2].split('.')[:2])

    @staticmethod
    def daemon():
        return Path('storage-daemon', 'qemu-storage-daemon')

    def tool(self, name):
        return self.dir / name


def preallocation(row, mode):
    return ','.join((*row.options, f'preallocation={mode}'))


def create(build, row, mode, image, size=SIZE):
    return [build.tool('qemu-img'), 'create', '-q', '-f', row.format,
            *row.objects(), '-o', preallocation(row, mode),
            row.new_file or image, size]


def convert(build, row, mode, image, source):
    return [build.tool('qemu-img'), 'convert', '-q', *row.objects(), '-f',
            'raw', '-O', row.format, '-o', preallocation(row, mode), source,
            image]


def resize(build, row, mode, image):
    return [build.tool('qemu-img'), 'resize', '-q', *row.objects(),
            f'--preallocation={mode}', '--image-opts', row.opened_as(image),
            OLD_SIZE + SIZE]


def truncate(build, row, mode, image):
    return [build.tool('qemu-io'), *row.objects(), '--image-opts', '-c',
            f'truncate -m {mode} {OLD_SIZE + SIZE}', row.opened_as(image)]


def measure(build, row, mode):
    return [build.tool('qemu-img'), 'measure', '--output=json',
            *row.objects(), '-O', row.format, '-o', preallocation(row, mode),
            '--size', SIZE]


def compare(build, row, image, reference, size):
    """The first SIZE bytes of both."""
    opened = row.opened_as(image).split(',')
    first = ','.join(['driver=raw', f'size={size}',
                      *(f'file.{word}' for word in opened)])
    return [build.tool('qemu-img'), 'compare', '-q', *row.objects(),
            '--image-opts', first,
            f'driver=raw,size={size},file.filename={reference}']


def fill(build, row, image, source):
    """Copy into an image that is there."""
    return [build.tool('qemu-img'), 'convert', '-n', '-f', 'raw',
            *row.objects(), '--target-image-opts', source,
            row.opened_as(image)]


# ---- images ----------------------------------------------------------------

def snapshot(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()
            if path.is_file()}


def restore(directory, files):
    """Written to the disk: what is allocated later comes from QEMU."""
    for path in directory.iterdir():
        path.unlink()
    for name, data in files.items():
        with open(directory / name, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def make_sparse(path, size):
    with open(path, 'ab') as file:
        file.truncate(size)


def make_files(directory, row, size):
    """What has to be there before the image is made."""
    for path in directory.iterdir():
        path.unlink()
    for name in row.needs:
        make_sparse(directory / name, size)
    if row.served_by:
        make_sparse(directory / 'image', size)


def occupied(directory):
    return sum(targets.allocated(path) for path in directory.iterdir()
               if path.is_file())


# ---- what lies between QEMU and the file -----------------------------------

@contextlib.contextmanager
def served(row, build, directory):
    """Yields the name under which QEMU finds the image."""
    if row.served_by == 'loop':
        with _loop_device(directory / 'image') as device:
            yield device
    elif row.served_by == 'nbd':
        with nbd_server(build.tool('qemu-nbd'), directory, 'image'):
            yield 'nbd+unix:///?socket=socket'
    else:
        yield 'image'


@contextlib.contextmanager
def _loop_device(path):
    device = targets.run('losetup', '--find', '--show', path).strip()
    try:
        descriptor = os.open(device, os.O_RDWR)
    finally:
        # Really detached when the descriptor is closed, also if killed.
        targets.run('losetup', '--detach', device)
    try:
        yield device
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    _wait_for(lambda: not _is_attached(device), f'{device}: not detached')


def _is_attached(device):
    return Path('/sys/block', Path(device).name, 'loop').exists()


def _wait_for(condition, problem):
    deadline = time.monotonic() + SERVER_TIMEOUT
    while not condition():
        if time.monotonic() > deadline:
            raise TargetError(problem)
        time.sleep(0.005)


# ---- QMP -------------------------------------------------------------------

class StorageDaemon:
    """A qemu-storage-daemon with a QMP connection over its stdio."""

    def __init__(self, build, row, directory):
        command = [build.tool(build.daemon()), *row.objects(), '--chardev',
                   'stdio,id=c', '--monitor', 'chardev=c']
        for node, name in row.nodes.items():
            command += ['--blockdev',
                        f'driver=file,node-name={node},filename={name}']
        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=directory, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        self._read()            # the greeting
        self.execute('qmp_capabilities')
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.terminate()
        self.process.stdout.close()
        self.process.wait()

    def _read(self):
        line = self.process.stdout.readline()
        if not line:
            raise TargetError('qemu-storage-daemon ended')
        return json.loads(line)

    def execute(self, name, **arguments):
        """Returns the answer: 'return' or 'error'."""
        message = {'execute': name, 'arguments': arguments}
        self.process.stdin.write(json.dumps(message) + '\n')
        self.process.stdin.flush()
        while True:
            answer = self._read()
            if 'event' not in answer:
                return answer

    def run_job(self, name, **arguments):
        """Returns the error's text, '' if there was none."""
        answer = self.execute(name, **arguments, **{'job-id': 'j'})
        if 'error' in answer:
            return answer['error']['desc']
        while True:
            job, = self.execute('query-jobs')['return']
            if job['status'] == 'concluded':
                self.execute('job-dismiss', id='j')
                return job.get('error', '')
            time.sleep(0.005)


def blockdev_create(build, row, mode, directory):
    with StorageDaemon(build, row, directory) as daemon:
        error = daemon.run_job('blockdev-create', options={
            **row.blockdev, 'size': SIZE, 'preallocation': mode})
        return Result(1 if error else 0, '', error)


# ---- cells -----------------------------------------------------------------

OPERATIONS = ('create', 'resize', 'truncate', 'convert', 'blockdev-create',
              'measure')
GROWING = 'resize', 'truncate'
COMMANDS = {'create': create, 'resize': resize, 'truncate': truncate}


class Outcome(NamedTuple):
    ok: bool
    text: str               # what came of it, or the message
    hints: tuple = ()       # lines behind the message
    status: int = 0
    made: tuple = ()        # files that an error leaves behind
    changed: tuple = ()     # files that an error changed or removed


class Cell(NamedTuple):
    target: str
    row: Row
    operation: str
    mode: str

    def name(self):
        target = '' if self.operation == 'measure' else f', {self.target}'
        return (f'{self.row.name}: {self.operation} {self.mode}{target}')


class Matrix:
    """Runs cells, each once and with both builds at the same time."""

    def __init__(self, qemu, directories):
        """Directories of the builds, and for images by name of target."""
        self.builds = {name: Build(Path(qemu) / name) for name in VARIANTS}
        self.directories = directories
        self.references = targets.workspace().new_dir('references')
        self.scratch = targets.workspace().new_dir('scratch')
        self.old_images = {}
        self.outcomes = {}
        for directory in directories.values():
            for variant in VARIANTS:
                (directory / variant).mkdir()
        for size, data in DATA.items():
            self._make_reference(f'image-{size}', size, data)
        self._make_reference('grown', OLD_SIZE + SIZE, DATA[OLD_SIZE])
        self._make_reference('empty', SIZE, 0)

    def _make_reference(self, name, size, data):
        with open(self.references / name, 'wb') as file:
            file.write((bytes(range(1, 256)) * (data // 255 + 1))[:data])
            file.truncate(size)

    def rows(self):
        version = self.builds['stock'].version
        return [row for row in ROWS if row.since <= version
                and (row.served_by != 'loop' or targets.is_root())]

    def cells(self):
        """measure touches no target: its cells are there only once."""
        return [Cell(target, row, operation, mode)
                for target in self.directories for row in self.rows()
                for operation in row.operations() for mode in MODES
                if operation != 'measure' or target == FILE]

    def run(self, cell):
        """The outcomes, by name of build."""
        name = cell.name()
        if name not in self.outcomes:
            old = self._old_image(cell.row)
            with ThreadPoolExecutor(len(VARIANTS)) as pool:
                both = pool.map(lambda variant: self._run(variant, cell, old),
                                VARIANTS)
                self.outcomes[name] = dict(zip(VARIANTS, both))
        return self.outcomes[name]

    def _old_image(self, row):
        """The files of an image to grow, with data, made by stock."""
        if row.name not in self.old_images:
            source = self.references / f'image-{OLD_SIZE}'
            make_files(self.scratch, row, OLD_SIZE)
            if row.format == 'raw':
                shutil.copy(source, self.scratch / 'image')
            else:
                build = self.builds['stock']
                for command in (
                        create(build, row, 'off', 'image', OLD_SIZE),
                        fill(build, row, 'image', source)):
                    result = again(run, command, cwd=self.scratch)
                    if result.status:
                        raise TargetError(f'{row.name}: {result.err}')
            self.old_images[row.name] = snapshot(self.scratch)
        return self.old_images[row.name]

    def _run(self, variant, cell, old):
        build = self.builds[variant]
        row, operation, mode = cell.row, cell.operation, cell.mode
        if operation == 'measure':
            return _measured(again(run, measure(build, row, mode)))
        directory = self.directories[cell.target] / variant
        if operation in GROWING:
            restore(directory, old)
        else:
            make_files(directory, row, SIZE)
        if operation == 'blockdev-create':
            for name in row.nodes.values():
                (directory / name).write_bytes(b'')
        before, bytes_before = snapshot(directory), occupied(directory)
        with served(row, build, directory) as image:
            result = again(self._do, build, row, operation, mode, image,
                           directory)
            differs = result.status == 0 and self._differs(
                row, operation, image, directory)
        if result.status:
            return _failed(result, before, snapshot(directory))
        if differs:
            return Outcome(False, f'wrong content: {differs}')
        full = occupied(directory) - bytes_before >= SIZE
        return Outcome(True, 'allocated' if full else 'sparse')

    def _do(self, build, row, operation, mode, image, directory):
        if operation == 'blockdev-create':
            return blockdev_create(build, row, mode, directory)
        if operation == 'convert':
            command = convert(build, row, mode, image,
                              self.references / f'image-{SIZE}')
        else:
            command = COMMANDS[operation](build, row, mode, image)
        return run(command, cwd=directory)

    def _differs(self, row, operation, image, directory):
        """What is wrong with the content of an image, as stock reads it."""
        name, data, size = {
            'convert': (f'image-{SIZE}', SIZE, SIZE),
            'resize': ('grown', OLD_SIZE, OLD_SIZE + SIZE),
            'truncate': ('grown', OLD_SIZE, OLD_SIZE + SIZE),
        }.get(operation, ('empty', 0, SIZE))
        # What encryption makes of zeros that nobody encrypted is not zero.
        size = data if row.format == 'luks' else size
        if size == 0:
            return ''
        result = run(compare(self.builds['stock'], row, image,
                             self.references / name, size), cwd=directory)
        if result.status:
            return (result.out + result.err).strip() or 'differs'
        return ''


def _failed(result, before, after):
    text = re.sub(r'/dev/loop\d+', 'DEVICE', result.err)
    lines = re.sub('^qemu-(img|io): ', '', text).splitlines()
    made = sorted(after.keys() - before.keys())
    changed = sorted(name for name in before
                     if before[name] != after.get(name))
    return Outcome(False, lines[0] if lines else '(no message)',
                   tuple(lines[1:]), result.status, tuple(made),
                   tuple(changed))


def _measured(result):
    if result.status:
        return _failed(result, {}, {})
    sizes = json.loads(result.out)
    return Outcome(True, f'{sizes["required"]} of '
                   f'{sizes["fully-allocated"]} bytes')


@contextlib.contextmanager
def matrix(qemu):
    """A Matrix of the builds in a directory, on both targets."""
    directory = targets.workspace().new_dir('images')
    targets.run('fallocate', '--length', 4096, directory / 'probe')
    (directory / 'probe').unlink()
    with Target.mount('fuse') as fuse:
        without = fuse.dir / 'images'
        without.mkdir()
        yield Matrix(qemu, {FILE: directory, FUSE: without})
