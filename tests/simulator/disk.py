"""A disk whose power can be cut: the Disk of the simulator, also usable on its own.

    disk = SimulatedDisk(SimulatedRandom(7))
    ...use it...
    disk.power_cut()        # unsynced pages and names survive as the seed decides
    ...open everything again and see what recovery makes of it...

What is durable follows POSIX and no file system's habits: `sync_data` covers one file's bytes and
size, `sync_folder` the names in one folder; `write_atomic` and `make_folder` cover both, as their
contracts say. Every unsynced name may be found old, new or in between; `simulated_files` says what
may be found inside the files.

`operations` lists every change in its order as (operation, path), so that a test can demand that
the sync came before the acknowledgement.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from headrace.errors import DiskFullError, LockedError, NotFoundError, StorageError
from headrace.runtime.interfaces import Buffer, Random
from tests.simulator.files import FileContent
from tests.simulator.host import check_alive

_FREE_BYTES = 1 << 40
_OPEN_FILES_MAX = 1 << 16


class PowerCut(BaseException):
    """The power is off: out of the call it happened in, and every call until `power_cut()`.

    Not an Exception, because no handler may survive it; a dead machine handles nothing.
    """


class _Folder:
    """Names as they are, as they are durable, and what each of them was since the last sync."""

    def __init__(self) -> None:
        self.names: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}
        self.changes: dict[str, list[_Node | None]] = {}

    def set(self, name: str, node: _Node | None) -> None:
        self.changes.setdefault(name, [self.durable.get(name)]).append(node)
        if node is None:
            self.names.pop(name, None)
        else:
            self.names[name] = node

    def set_durable(self, name: str, node: _Node) -> None:
        self.names[name] = node
        self.durable[name] = node
        self.changes.pop(name, None)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def power_cut(self, random: Random) -> None:
        for name, states in sorted(self.changes.items()):
            found = states[random.below(len(states))]
            if found is None:
                self.durable.pop(name, None)
            else:
                self.durable[name] = found
        self.changes.clear()
        self.names = dict(self.durable)
        for _, node in sorted(self.names.items()):
            node.power_cut(random)


_Node: TypeAlias = FileContent | _Folder


class SimulatedDisk:
    def __init__(
        self,
        random: Random,
        *,
        on_operation: Callable[[str, str], None] = lambda operation, path: None,
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        self.full = False  # no write may take new space
        self.machine_name = ""  # what `machine` answers: readers on it may use this disk's files
        self.free = _FREE_BYTES  # what free_bytes answers while not full
        self.operations: list[tuple[str, str]] = []
        self.bytes_written = 0
        self.dropped: list[tuple[str, int, int]] = []
        """Path, offset and length of what was said to be read by nobody."""
        self._random = random
        self._on_operation = on_operation
        self._on_cut = on_cut
        self._root = _Folder()
        self._locks: dict[str, SimulatedLock] = {}
        self._serials: dict[FileContent, int] = {}  # of files that somebody identified
        self._life = 0  # handles of an earlier life are dead
        self._off = False
        self._bytes_left: int | None = None
        self._operations_left: int | None = None
        self._failures: list[tuple[str, type[StorageError]]] = []

    # what tests do to it

    def power_cut(self) -> None:
        """Lose what the seed loses of the unsynced, and come back up. Open handles are dead."""
        self._root.power_cut(self._random)
        self.end_process()
        self._off = False
        self._bytes_left = self._operations_left = None
        self._note("power_cut", "/")

    def end_process(self) -> None:
        """kill -9: open handles and locks are gone, written bytes stay visible and unsynced."""
        self._life += 1
        self._locks.clear()

    def wipe(self) -> None:
        """An empty disk in the place of this one."""
        self._root = _Folder()
        self.end_process()
        self.full = False
        self._note("wipe", "/")

    def files(self) -> dict[str, bytes]:
        """Every file as it is now, by path; no simulated process reads this."""
        return dict(_walk(self._root, ""))

    def cut_after(self, byte_count: int) -> None:
        """Cut the power when `byte_count` more bytes are written, in the midst of a write."""
        assert byte_count > 0
        self._bytes_left = byte_count

    def cut_before(self, operation_count: int) -> None:
        """Cut the power when `operation_count` more changes have begun, before the next one."""
        self._operations_left = operation_count

    def fail_next(self, operation: str, error: type[StorageError] = StorageError) -> None:
        """Let the next operation of that name (as in `operations`) fail.

        It changes nothing, but a failed sync loses what it should have made durable; that of an
        atomic write, `sync_atomic`, leaves the new file in its place, not durable.
        """
        self._failures.append((operation, error))

    def forget_plans(self) -> None:
        """No planned cut or failure happens any more."""
        self._bytes_left = self._operations_left = None
        self._failures.clear()

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        self._file(path).flip_bit(offset, bit)

    # the Disk interface

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        self._check_power()
        if create and not self.exists(path):
            folder, name = self._locate(path)
            self._begin("create", path)
            folder.set(name, FileContent())
        return SimulatedFile(self, path, self._file(path))

    def read(self, path: str) -> bytes:
        self._check_power()
        return bytes(self._file(path).visible)

    def write_atomic(self, path: str, data: Buffer, *, mode: int = 0o600) -> None:
        self._check_power()
        folder, name = self._locate(path)
        if self.exists(path):
            self._file(path)  # refuses a folder
        self._begin("write_atomic", path)
        content = FileContent()
        length = memoryview(data).nbytes
        if self.full and length:
            raise DiskFullError("no space left", path=path)
        # A cut before the last byte leaves the old file; the temporary one is never seen again.
        if self._take_power(length) < length:
            self._cut()
        content.write(bytes(data), 0)
        content.sync()
        if self._off_after_this():
            # All bytes are in the temporary file; whether the rename made it, nobody knows.
            folder.set(name, content)
            self._cut()
        if (error := self._planned("sync_atomic", path)) is not None:
            folder.set(name, content)  # seen by everybody, and gone with the power
            raise error
        folder.set_durable(name, content)

    def exists(self, path: str) -> bool:
        self._check_power()
        try:
            folder, name = self._locate(path)
        except NotFoundError:
            return False
        return not name or name in folder.names

    def list(self, path: str) -> list[str]:
        self._check_power()
        try:
            return sorted(self._folder(path).names)
        except NotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        self._check_power()
        folder = self._root
        for name in _parts(path):
            node = folder.names.get(name)
            if node is None:
                self._begin("make_folder", path)
                node = _Folder()
                folder.set_durable(name, node)
            if not isinstance(node, _Folder):
                raise StorageError("is not a folder", path=path)
            folder = node

    def rename(self, path: str, target: str) -> None:
        self._check_power()
        content = self._file(path)
        if self.exists(target):
            self._file(target)  # refuses a folder
        self._begin("rename", target)
        # Until the folder is synced a cut may find either name old or new, both or none of them.
        folder, name = self._locate(target)
        folder.set(name, content)
        folder, name = self._locate(path)
        folder.set(name, None)

    def remove(self, path: str) -> None:
        self._check_power()
        if not self.exists(path):
            return
        self._file(path)  # refuses a folder
        folder, name = self._locate(path)
        self._begin("remove", path)
        folder.set(name, None)

    def remove_tree(self, path: str) -> None:
        self._check_power()
        if not self.exists(path):
            return
        folder, name = self._locate(path)
        self._begin("remove_tree", path)
        # Each name goes on its own: after a cut the folder may be back with half of its files.
        _empty(folder.names[name])
        folder.set(name, None)

    def sync_folder(self, path: str) -> None:
        self._check_power()
        folder = self._folder(path)
        self._begin("sync_folder", path)
        folder.sync()

    def size(self, path: str) -> int:
        self._check_power()
        return len(self._file(path).visible)

    def free_bytes(self, path: str) -> int:
        self._check_power()
        return 0 if self.full else self.free

    def total_bytes(self, path: str) -> int:
        self._check_power()
        return _FREE_BYTES

    def open_files_max(self) -> int:
        return _OPEN_FILES_MAX

    def machine(self) -> str:
        return self.machine_name

    def identify(self, path: str) -> tuple[str, str]:
        self._check_power()
        serial = self._serials.setdefault(self._file(path), len(self._serials))
        return path, f"{self.machine_name}/{serial}"

    def open_same(self, path: str, identity: str) -> SimulatedFile:
        if self.identify(path)[1] != identity:
            raise NotFoundError("another file than the one meant", path=path)
        return self.open(path)

    def lock(self, path: str) -> SimulatedLock:
        self.open(path, create=True)
        key = "/".join(_parts(path))
        if key in self._locks:
            raise LockedError("another process holds this lock", path=path)
        lock = self._locks[key] = SimulatedLock(self._locks, key)
        return lock

    # for files

    @property
    def life(self) -> int:
        return self._life

    def check_handle(self, life: int) -> None:
        self._check_power()
        if life != self._life:
            raise PowerCut("this handle is from before the power cut")

    def write(self, path: str, content: FileContent, data: bytes, offset: int) -> None:
        self._begin("write", path)
        fits = len(data)
        if self.full:
            end = max(len(content.visible), content.reserved_end)
            fits = max(0, min(fits, end - offset))
        wanted = fits
        fits = self._take_power(fits)
        if fits:
            content.write(data[:fits], offset)
            self.bytes_written += fits
        if fits < wanted or self._off_after_this():
            self._cut()
        if wanted < len(data):
            raise DiskFullError("no space left", path=path)

    def truncate(self, path: str, content: FileContent, length: int) -> None:
        self._begin("truncate", path)
        content.truncate(length)

    def allocate(self, path: str, content: FileContent, end: int) -> None:
        self._begin("allocate", path)
        if self.full and end > max(len(content.visible), content.reserved_end):
            raise DiskFullError("no space left", path=path)
        content.reserved_end = max(content.reserved_end, end)

    def sync(self, path: str, content: FileContent) -> None:
        try:
            self._begin("sync", path)
        except StorageError:
            # As Linux does: the pages of a failed sync count as clean, and the next sync, which
            # succeeds, does not write them. Whoever only tries again loses data here.
            content.forget_pending()
            raise
        content.sync()

    # power

    def _check_power(self) -> None:
        check_alive()
        if self._off:
            raise PowerCut

    def _begin(self, operation: str, path: str) -> None:
        """A change starts: the moment for planned failures, and the entry in `operations`."""
        if self._operations_left is not None:
            if self._operations_left == 0:
                self._cut()
            self._operations_left -= 1
        if (error := self._planned(operation, path)) is not None:
            raise error
        self._note(operation, path)

    def _planned(self, operation: str, path: str) -> StorageError | None:
        for planned in self._failures:
            if planned[0] == operation:
                self._failures.remove(planned)
                return planned[1]("planned failure", path=path)
        return None

    def _note(self, operation: str, path: str) -> None:
        self.operations.append((operation, path))
        self._on_operation(operation, path)

    def _take_power(self, byte_count: int) -> int:
        """How many of the next `byte_count` bytes are written before the power goes."""
        if self._bytes_left is None:
            return byte_count
        taken = min(byte_count, self._bytes_left)
        self._bytes_left -= taken
        return taken

    def _off_after_this(self) -> bool:
        return self._bytes_left == 0

    def _cut(self) -> None:
        self._off = True
        self._on_cut()
        raise PowerCut

    # paths

    def _locate(self, path: str) -> tuple[_Folder, str]:
        """The folder that holds `path`, and its name there (the root's is empty)."""
        parts = _parts(path)
        folder = self._root
        for part in parts[:-1]:
            node = folder.names.get(part)
            if not isinstance(node, _Folder):
                raise NotFoundError("no such file or folder", path=path)
            folder = node
        return folder, parts[-1] if parts else ""

    def _folder(self, path: str) -> _Folder:
        folder, name = self._locate(path)
        node = folder.names.get(name) if name else self._root
        if node is None:
            raise NotFoundError("no such file or folder", path=path)
        if not isinstance(node, _Folder):
            raise StorageError("is not a folder", path=path)
        return node

    def _file(self, path: str) -> FileContent:
        folder, name = self._locate(path)
        node = folder.names.get(name) if name else self._root
        if node is None:
            raise NotFoundError("no such file or folder", path=path)
        if isinstance(node, _Folder):
            raise StorageError("is a folder", path=path)
        return node


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: str, content: FileContent) -> None:
        self._disk = disk
        self._path = path
        self._content = content
        self._life = disk.life
        self._closed = False

    def pread(self, length: int, offset: int) -> bytes:
        self._check()
        return bytes(self._content.visible[offset : offset + length])

    def pwrite(self, pieces: Sequence[Buffer], offset: int) -> int:
        self._check()
        data = b"".join(pieces)
        self._disk.write(self._path, self._content, data, offset)
        return len(data)

    def sync_data(self) -> None:
        self._check()
        self._disk.sync(self._path, self._content)

    def truncate(self, length: int) -> None:
        self._check()
        self._disk.truncate(self._path, self._content, length)

    def allocate(self, offset: int, length: int) -> None:
        self._check()
        self._disk.allocate(self._path, self._content, offset + length)

    def fill(self, offset: int, length: int) -> None:
        self.allocate(offset, length)

    def drop_cached(self, offset: int, length: int) -> None:
        self._check()
        self._disk.dropped.append((self._path, offset, length))

    def size(self) -> int:
        self._check()
        return len(self._content.visible)

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        self._disk.check_handle(self._life)
        if self._closed:
            raise StorageError("the file is closed", path=self._path)


class SimulatedLock:
    def __init__(self, locks: dict[str, SimulatedLock], key: str) -> None:
        self._locks = locks
        self._key = key

    def release(self) -> None:
        if self._locks.get(self._key) is self:
            del self._locks[self._key]


def _parts(path: str) -> list[str]:
    return [part for part in posixpath.normpath("/" + path).split("/") if part]


def _empty(node: _Node) -> None:
    if isinstance(node, _Folder):
        for name, child in list(node.names.items()):
            _empty(child)
            node.set(name, None)


def _walk(folder: _Folder, path: str) -> Iterator[tuple[str, bytes]]:
    for name, node in sorted(folder.names.items()):
        if isinstance(node, _Folder):
            yield from _walk(node, f"{path}/{name}")
        else:
            yield f"{path}/{name}", bytes(node.visible)
