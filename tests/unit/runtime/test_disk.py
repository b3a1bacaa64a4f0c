"""What every Disk does."""

import pytest

from headrace.errors import LockedError, NotFoundError, StorageError
from headrace.runtime import Disk
from tests.unit.runtime.worlds import World


@pytest.fixture
def disk(disk_world: World) -> Disk:
    return disk_world.runtime.disk


@pytest.fixture
def folder(disk_world: World) -> str:
    return disk_world.folder


def test_pieces_are_written_one_after_the_other(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    assert file.pwrite([b"one", bytearray(b"two"), memoryview(b"-three")[1:]], 2) == 11
    assert file.pread(100, 0) == b"\0\0onetwothree"
    assert file.size() == disk.size(f"{folder}/a") == 13
    file.close()


def test_bytes_of_a_wide_memoryview_are_counted(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    wide = memoryview(bytes(range(16))).cast("Q")
    assert file.pwrite([wide, b"!"], 0) == 17
    assert file.pread(17, 0) == bytes(range(16)) + b"!"
    file.close()


def test_nothing_to_write_writes_nothing(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    assert file.pwrite([], 10) == 0
    assert file.pwrite([b""], 10) == 0
    assert file.size() == 0
    file.close()


def test_more_pieces_than_one_system_call_takes(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    pieces = [bytes([index % 251]) * (index % 7) for index in range(5000)]
    assert file.pwrite(pieces, 3) == sum(map(len, pieces))
    assert file.pread(1 << 20, 3) == b"".join(pieces)
    file.close()


def test_overwriting_changes_only_what_it_covers(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"0123456789"], 0)
    file.pwrite([b"ab"], 4)
    assert file.pread(10, 0) == b"0123ab6789"
    file.close()


def test_pread_stops_at_the_end(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"0123456789"], 0)
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 99) == b""
    assert file.pread(0, 0) == b""
    file.close()


def test_truncate_shrinks_and_grows_with_zeros(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"0123456789"], 0)
    file.truncate(4)
    assert file.pread(10, 0) == b"0123"
    file.truncate(6)
    assert file.pread(10, 0) == b"0123\0\0"
    file.close()


def test_allocate_keeps_size_and_content(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"data"], 0)
    file.allocate(0, 1 << 20)
    assert file.size() == 4
    assert file.pread(1 << 20, 0) == b"data"
    file.pwrite([b"!"], 100)
    assert file.pread(200, 0) == b"data" + bytes(96) + b"!"
    file.close()


def test_two_handles_see_the_same_bytes(disk: Disk, folder: str) -> None:
    writer, reader = disk.open(f"{folder}/a", create=True), disk.open(f"{folder}/a")
    writer.pwrite([b"seen"], 0)
    writer.sync_data()
    assert reader.pread(4, 0) == disk.read(f"{folder}/a") == b"seen"
    writer.close()
    reader.close()


def test_a_closed_file_refuses_every_call(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.close()
    file.close()
    for call in (
        lambda: file.pread(1, 0),
        lambda: file.pwrite([b"x"], 0),
        file.sync_data,
        lambda: file.truncate(0),
        lambda: file.allocate(0, 1),
        file.size,
    ):
        with pytest.raises(StorageError):
            call()


def test_absent_paths(disk: Disk, folder: str) -> None:
    absent = f"{folder}/no/such"
    for call in (disk.open, disk.read, disk.size, disk.sync_folder):
        with pytest.raises(NotFoundError):
            call(absent)
    with pytest.raises(NotFoundError):
        disk.open(absent, create=True)
    with pytest.raises(NotFoundError):
        disk.write_atomic(absent, b"x")
    assert not disk.exists(absent)
    assert disk.list(absent) == []
    disk.remove(absent)
    disk.remove_tree(absent)


def test_opening_again_keeps_the_content(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"kept"], 0)
    file.close()
    again = disk.open(f"{folder}/a", create=True)
    assert again.pread(10, 0) == b"kept"
    again.close()


def test_write_atomic_replaces_whole(disk: Disk, folder: str) -> None:
    disk.write_atomic(f"{folder}/a", b"a long first version")
    disk.write_atomic(f"{folder}/a", memoryview(b"second"))
    assert disk.read(f"{folder}/a") == b"second"
    assert disk.list(folder) == ["a"]


def test_rename_replaces_whole(disk: Disk, folder: str) -> None:
    disk.write_atomic(f"{folder}/a", b"old and long")
    disk.write_atomic(f"{folder}/b", b"new")
    before = disk.open(f"{folder}/a")
    disk.rename(f"{folder}/b", f"{folder}/a")
    disk.sync_folder(folder)
    assert disk.read(f"{folder}/a") == b"new"
    assert not disk.exists(f"{folder}/b")
    assert before.pread(3, 0) == b"old"
    before.close()
    disk.rename(f"{folder}/a", f"{folder}/c")
    assert disk.read(f"{folder}/c") == b"new"
    with pytest.raises(NotFoundError):
        disk.rename(f"{folder}/a", f"{folder}/c")


def test_an_open_file_outlives_its_replacement(disk: Disk, folder: str) -> None:
    disk.write_atomic(f"{folder}/a", b"old")
    file = disk.open(f"{folder}/a")
    disk.write_atomic(f"{folder}/a", b"new")
    assert file.pread(3, 0) == b"old"
    file.close()


def test_an_open_file_outlives_its_name(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"still"], 0)
    disk.remove(f"{folder}/a")
    assert not disk.exists(f"{folder}/a")
    assert file.pread(5, 0) == b"still"
    file.close()


def test_folders(disk: Disk, folder: str) -> None:
    disk.make_folder(f"{folder}/x/y/z")
    disk.make_folder(f"{folder}/x/y/z")
    disk.write_atomic(f"{folder}/x/y/b", b"")
    disk.write_atomic(f"{folder}/x/y/a", b"")
    assert disk.list(f"{folder}/x/y") == ["a", "b", "z"]
    assert disk.exists(f"{folder}/x/y/z")
    disk.sync_folder(f"{folder}/x/y")
    disk.remove_tree(f"{folder}/x")
    assert not disk.exists(f"{folder}/x")
    assert disk.list(folder) == []


def test_remove_tree_takes_a_file_too(disk: Disk, folder: str) -> None:
    disk.write_atomic(f"{folder}/a", b"")
    disk.remove_tree(f"{folder}/a")
    assert disk.list(folder) == []


def test_a_folder_is_not_a_file(disk: Disk, folder: str) -> None:
    disk.make_folder(f"{folder}/x")
    with pytest.raises(StorageError):
        disk.open(f"{folder}/x")
    with pytest.raises(StorageError):
        disk.open(f"{folder}/x", create=True)
    with pytest.raises(StorageError):
        disk.read(f"{folder}/x")
    with pytest.raises(StorageError):
        disk.remove(f"{folder}/x")
    with pytest.raises(StorageError):
        disk.write_atomic(f"{folder}/x", b"")
    disk.write_atomic(f"{folder}/f", b"")
    with pytest.raises(StorageError):
        disk.make_folder(f"{folder}/f")
    with pytest.raises(StorageError):
        disk.make_folder(f"{folder}/f/g")
    with pytest.raises(StorageError):
        disk.list(f"{folder}/f")


def test_a_lock_is_held_once(disk: Disk, folder: str) -> None:
    lock = disk.lock(f"{folder}/lock")
    with pytest.raises(LockedError):
        disk.lock(f"{folder}/lock")
    other = disk.lock(f"{folder}/other")
    lock.release()
    lock.release()
    disk.lock(f"{folder}/lock").release()
    other.release()


def test_releasing_twice_does_not_free_the_next_holder(disk: Disk, folder: str) -> None:
    first = disk.lock(f"{folder}/lock")
    first.release()
    second = disk.lock(f"{folder}/lock")
    first.release()
    with pytest.raises(LockedError):
        disk.lock(f"{folder}/lock")
    second.release()


def test_what_is_written_into_filled_space_is_read_back(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/f", create=True)
    file.fill(0, 3_000_000)
    file.pwrite([b"abc"], 2_500_000)
    assert file.pread(3, 2_500_000) == b"abc"
    assert set(file.pread(10, 100)) <= {0}
    file.close()


def test_many_files_may_be_open(disk: Disk, folder: str) -> None:
    limit = disk.open_files_max()
    assert limit >= 256
    files = [disk.open(f"{folder}/{at}", create=True) for at in range(min(limit // 2, 2000))]
    for file in files:
        file.close()


def test_free_bytes_is_positive(disk: Disk, folder: str) -> None:
    assert disk.free_bytes(folder) > 0


def test_bytes_that_leave_the_page_cache_are_still_there(disk: Disk, folder: str) -> None:
    file = disk.open(f"{folder}/a", create=True)
    file.pwrite([b"x" * 10_000], 0)
    file.drop_cached(0, 10_000)  # not synced: advice has nothing to lose
    file.sync_data()
    file.drop_cached(0, 8_192)
    assert file.pread(10_000, 0) == b"x" * 10_000
    file.close()
    with pytest.raises(StorageError):
        file.drop_cached(0, 1)
