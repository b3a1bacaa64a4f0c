"""What only the real disk can show: system calls, their errors and their short answers."""

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from headrace.errors import DiskFullError, LockedError, StorageError
from headrace.runtime import Buffer
from headrace.runtime.system import disk as system_disk
from headrace.runtime.system.disk import SystemDisk


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


def test_short_writes_are_continued(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    calls = 0

    def short(descriptor: int, pieces: Sequence[Buffer], offset: int) -> int:
        nonlocal calls
        calls += 1
        return real(descriptor, [b"".join(pieces)[:7]], offset)

    monkeypatch.setattr(os, "pwritev", short)
    file = disk.open(f"{tmp_path}/a", create=True)
    pieces: list[Buffer] = [b"0123", b"", b"456789", memoryview(b"abcdefghij"), b"!"]
    assert file.pwrite(pieces, 5) == 21
    assert file.pread(30, 5) == b"".join(pieces)
    assert calls == 3
    file.close()


def test_a_write_that_makes_no_progress_is_an_error(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *arguments: 0)
    file = disk.open(f"{tmp_path}/a", create=True)
    with pytest.raises(StorageError):
        file.pwrite([b"x"], 0)
    file.close()


def test_short_reads_are_continued(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.pwrite([b"0123456789"], 0)
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 3), offset))
    assert file.pread(9, 1) == b"123456789"
    assert file.pread(99, 1) == b"123456789"
    file.close()


def test_a_full_disk_has_a_name() -> None:
    full = SystemDisk().open("/dev/full")
    with pytest.raises(DiskFullError) as caught:
        full.pwrite([b"x"], 0)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.data == {"path": "/dev/full"}
    full.close()


@pytest.mark.parametrize(
    ("call", "method"),
    [
        ("fdatasync", "sync_data"),
        ("ftruncate", "truncate"),
        ("fstat", "size"),
    ],
)
def test_failures_of_system_calls_are_storage_errors(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, method: str
) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "planned")

    monkeypatch.setattr(os, call, fail)
    arguments = (0,) if method == "truncate" else ()
    with pytest.raises(StorageError) as caught:
        getattr(file, method)(*arguments)
    assert caught.value.data["errno"] == errno.EIO
    monkeypatch.undo()
    file.close()


def test_sync_data_is_fdatasync_of_this_file(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fdatasync

    def sync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    file = disk.open(f"{tmp_path}/a", create=True)
    file.sync_data()
    file.close()
    assert synced == [f"{tmp_path}/a"]


def test_write_atomic_syncs_file_then_renames_then_syncs_folder(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        what = os.readlink(f"/proc/self/fd/{descriptor}")
        steps.append("sync folder" if what == str(tmp_path) else "sync file")
        real_fsync(descriptor)

    def replace(source: str, target: str) -> None:
        steps.append("rename")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    disk.write_atomic(f"{tmp_path}/a", b"x" * 100_000, mode=0o640)
    assert steps == ["sync file", "rename", "sync folder"]
    assert os.stat(f"{tmp_path}/a").st_mode & 0o777 == 0o640


def test_a_failed_write_atomic_leaves_the_old_file_alone(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.write_atomic(f"{tmp_path}/a", b"old")

    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "planned")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskFullError):
        disk.write_atomic(f"{tmp_path}/a", b"new")
    monkeypatch.undo()
    assert disk.read(f"{tmp_path}/a") == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_what_a_killed_write_atomic_left_is_hidden(disk: SystemDisk, tmp_path: Path) -> None:
    (tmp_path / f"a.0123{system_disk._TEMPORARY_SUFFIX}").write_bytes(b"half")
    disk.write_atomic(f"{tmp_path}/a", b"whole")
    assert disk.list(str(tmp_path)) == ["a"]
    disk.remove_tree(str(tmp_path))
    assert not tmp_path.exists()


def test_make_folder_syncs_each_parent(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    disk.make_folder(f"{tmp_path}/x/y")
    assert synced == [str(tmp_path), f"{tmp_path}/x"]


def test_allocate_reserves_blocks(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.allocate(0, 1 << 20)
    status = os.stat(f"{tmp_path}/a")
    assert status.st_size == 0
    assert status.st_blocks * 512 >= 1 << 20
    file.close()


def test_allocate_beyond_every_disk_is_an_error(disk: SystemDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    with pytest.raises(StorageError):
        file.allocate(0, 1 << 60)
    file.close()


def test_a_lock_holds_against_another_process(disk: SystemDisk, tmp_path: Path) -> None:
    path = f"{tmp_path}/lock"
    program = (
        "import sys; from headrace.runtime.system.disk import SystemDisk\n"
        "lock = SystemDisk().lock(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(LockedError):
            disk.lock(path)
        child.kill()
        child.wait()
    disk.lock(path).release()
