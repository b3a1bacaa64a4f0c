"""Files on the machine: the Disk of the system runtime.

Every OSError is translated where it enters: ENOSPC and EDQUOT to DiskFullError, an absent path to
NotFoundError, the rest to StorageError. Calls block; services make them through an Executor.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import resource
import shutil
import stat
from collections.abc import Callable, Sequence

from headrace.errors import DiskFullError, HeadraceError, LockedError, NotFoundError, StorageError
from headrace.runtime.interfaces import Buffer

_IOV_MAX = os.sysconf("SC_IOV_MAX")
_FILE_MODE = 0o600  # records are private to the user the service runs as
_FOLDER_MODE = 0o700
_TEMPORARY_SUFFIX = ".headrace-tmp"  # what a killed write_atomic may leave behind; `list` hides it
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_FALLOC_FL_KEEP_SIZE = 1
_FILL_BYTES = 1024 * 1024
_OPEN_FILES_WANTED = 65_536
_CLOSED = 2**31 - 1  # no descriptor is that high: calls fail with EBADF (-1 would be a ValueError)


class SystemFile:
    """An open descriptor. Offsets are explicit, so threads may share it; `close` comes last."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self._descriptor, length, offset)
            if len(data) == length or not data:
                return data
            # A short read is the end of the file, or a signal in a large one: ask once more.
            pieces = [data]
            missing = length - len(data)
            while missing and data:
                data = os.pread(self._descriptor, missing, offset + length - missing)
                pieces.append(data)
                missing -= len(data)
        except OSError as error:
            raise storage_error(error, self._path) from error
        return b"".join(pieces)

    def pwrite(self, pieces: Sequence[Buffer], offset: int) -> int:
        total = sum(
            piece.nbytes if isinstance(piece, memoryview) else len(piece) for piece in pieces
        )
        try:
            if len(pieces) <= _IOV_MAX:
                written = os.pwritev(self._descriptor, pieces, offset)
                if written == total:
                    return total
            else:
                written = 0
            self._pwrite_rest(pieces, offset, written)
        except OSError as error:
            raise storage_error(error, self._path) from error
        return total

    def _pwrite_rest(self, pieces: Sequence[Buffer], offset: int, written: int) -> None:
        """Go on after `written` bytes: the kernel may stop early (disk nearly full, over 2 GiB)."""
        left = [memoryview(piece).cast("B") for piece in pieces]
        start = 0
        skip = written
        while True:
            while start < len(left) and skip >= len(left[start]):
                skip -= len(left[start])
                start += 1
            if start == len(left):
                return
            left[start] = left[start][skip:]
            skip = os.pwritev(self._descriptor, left[start : start + _IOV_MAX], offset + written)
            if skip == 0:
                raise OSError(errno.EIO, "the file takes no more bytes")
            written += skip

    def sync_data(self) -> None:
        try:
            os.fdatasync(self._descriptor)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def truncate(self, length: int) -> None:
        try:
            os.ftruncate(self._descriptor, length)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def allocate(self, offset: int, length: int) -> None:
        error_number = _fallocate_keep_size(self._descriptor, offset, length)
        # A file system that cannot reserve costs speed, not safety: a write still fails when full.
        if error_number not in (0, errno.EOPNOTSUPP, errno.ENOSYS):
            error = OSError(error_number, os.strerror(error_number))
            raise storage_error(error, self._path) from error

    def fill(self, offset: int, length: int) -> None:
        # Reserved blocks are marked as unwritten, and the first write to each changes that mark:
        # only blocks that were written once are free of metadata.
        zeros = bytes(min(length, _FILL_BYTES))
        for at in range(offset, offset + length, _FILL_BYTES):
            self.pwrite([memoryview(zeros)[: offset + length - at]], at)

    def drop_cached(self, offset: int, length: int) -> None:
        try:
            os.posix_fadvise(self._descriptor, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError as error:
            raise storage_error(error, self._path) from error

    def size(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as error:
            raise storage_error(error, self._path) from error

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)


class SystemLock:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, _CLOSED
        if descriptor != _CLOSED:
            os.close(descriptor)  # the lock belongs to the open file and goes with it


class SystemDisk:
    def open(self, path: str, *, create: bool = False) -> SystemFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        try:
            return SystemFile(path, os.open(path, flags, _FILE_MODE))
        except OSError as error:
            raise storage_error(error, path) from error

    def read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise storage_error(error, path) from error

    def write_atomic(self, path: str, data: Buffer, *, mode: int = 0o600) -> None:
        # Unique, because two threads may replace the same path; the last rename wins whole.
        temporary = f"{path}.{os.urandom(6).hex()}{_TEMPORARY_SUFFIX}"
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode
            )
            try:
                with open(descriptor, "wb", buffering=0) as file:
                    os.fchmod(file.fileno(), mode)  # open() obeyed the umask
                    _write_all(file.write, data)
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
            _sync_folder(os.path.dirname(path) or ".")
        except OSError as error:
            raise storage_error(error, path) from error

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def list(self, path: str) -> list[str]:
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error(error, path) from error
        return sorted(name for name in names if not name.endswith(_TEMPORARY_SUFFIX))

    def make_folder(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not os.path.isdir(folder) and folder != os.path.dirname(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        try:
            for folder in reversed(missing):
                try:
                    os.mkdir(folder, _FOLDER_MODE)
                except FileExistsError:
                    if not os.path.isdir(folder):
                        raise
                # Also when somebody else just made it: their sync may not have happened yet.
                _sync_folder(os.path.dirname(folder))
        except OSError as error:
            raise storage_error(error, path) from error

    def rename(self, path: str, target: str) -> None:
        try:
            os.replace(path, target)
        except OSError as error:
            raise storage_error(error, path) from error

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_error(error, path) from error

    def remove_tree(self, path: str) -> None:
        while os.path.lexists(path):
            try:
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)
            except FileNotFoundError:
                continue  # somebody removes the same tree; go on until it is gone
            except OSError as error:
                raise storage_error(error, path) from error

    def sync_folder(self, path: str) -> None:
        try:
            _sync_folder(path)
        except OSError as error:
            raise storage_error(error, path) from error

    def size(self, path: str) -> int:
        try:
            return os.stat(path).st_size
        except OSError as error:
            raise storage_error(error, path) from error

    def free_bytes(self, path: str) -> int:
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise storage_error(error, path) from error
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        try:
            status = os.statvfs(path)
        except OSError as error:
            raise storage_error(error, path) from error
        return status.f_blocks * status.f_frsize

    def open_files_max(self) -> int:
        # The soft limit, often 1,024, is there for programs that use select(); raising it is meant.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = _OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else hard
        wanted = min(wanted, _OPEN_FILES_WANTED)
        if soft == resource.RLIM_INFINITY or soft >= wanted:
            return int(wanted)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return int(soft)
        return int(wanted)

    def machine(self) -> str:
        return _boot_id()

    def identify(self, path: str) -> tuple[str, str]:
        try:
            return os.path.abspath(path), _identity(os.stat(path))
        except OSError as error:
            raise storage_error(error, path) from error

    def open_same(self, path: str, identity: str) -> SystemFile:
        # The path comes from a peer: whatever it leads to must not hold this process up.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(path, flags)
        except OSError as error:
            raise storage_error(error, path) from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or _identity(status) != identity:
            os.close(descriptor)
            raise NotFoundError("another file than the one meant", path=path)
        return SystemFile(path, descriptor)

    def lock(self, path: str) -> SystemLock:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _FILE_MODE)
        except OSError as error:
            raise storage_error(error, path) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                raise LockedError("another process holds this lock", path=path) from error
            raise storage_error(error, path) from error
        return SystemLock(descriptor)


def storage_error(error: OSError, path: str) -> HeadraceError:
    if error.errno in _NO_SPACE:
        return DiskFullError("no space left", path=path)
    if error.errno == errno.ENOENT:
        return NotFoundError("no such file or folder", path=path)
    return StorageError(error.strerror or "input/output error", path=path, errno=error.errno)


@functools.cache
def _boot_id() -> str:
    """The kernel's own name for its life: containers share it, virtual machines do not."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _identity(status: os.stat_result) -> str:
    return f"{_boot_id()}/{status.st_dev}/{status.st_ino}"


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(write: Callable[[memoryview], int | None], data: Buffer) -> None:
    left = memoryview(data).cast("B")
    while left:
        left = left[write(left) or 0 :]


def _load_fallocate() -> Callable[[int, int, int], int]:
    # os.posix_fallocate grows the file, and recovery would then read the reserve as data.
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate
    except AttributeError:
        return lambda descriptor, offset, length: errno.ENOSYS
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

    def fallocate_keep_size(descriptor: int, offset: int, length: int) -> int:
        failed = call(descriptor, _FALLOC_FL_KEEP_SIZE, offset, length) != 0
        return ctypes.get_errno() if failed else 0

    return fallocate_keep_size


_fallocate_keep_size = _load_fallocate()
