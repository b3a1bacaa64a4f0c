"""What a power cut takes, what it leaves, and the other accidents of the simulated disk."""

from collections.abc import Callable

import pytest

from headrace.errors import DiskFullError, NotFoundError, StorageError
from tests.simulator.disk import PowerCut, SimulatedDisk, SimulatedFile
from tests.simulator.files import PAGE_BYTES, SECTOR_BYTES
from tests.simulator.random import SimulatedRandom

SEEDS = range(300)


def new_disk(seed: int = 0) -> SimulatedDisk:
    return SimulatedDisk(SimulatedRandom(seed))


def synced_file(disk: SimulatedDisk, content: bytes) -> SimulatedFile:
    file = disk.open("/a", create=True)
    file.pwrite([content], 0)
    file.sync_data()
    disk.sync_folder("/")
    return file


def outcomes(
    change: Callable[[SimulatedDisk, SimulatedFile], object], content: bytes
) -> set[bytes]:
    """What /a may hold after a power cut right after `change`."""
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        change(disk, synced_file(disk, content))
        disk.power_cut()
        found.add(disk.read("/a"))
    return found


def test_synced_bytes_and_names_survive() -> None:
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_folder("/x/y")
        synced_file(disk, b"kept")
        disk.write_atomic("/x/y/b", b"atomic")
        disk.power_cut()
        assert disk.read("/a") == b"kept"
        assert disk.read("/x/y/b") == b"atomic"


def test_unsynced_pages_survive_in_any_subset() -> None:
    old = b"o" * (3 * PAGE_BYTES)
    new = b"n" * (3 * PAGE_BYTES)
    found = outcomes(lambda disk, file: file.pwrite([new], 0), old)
    pages = {
        tuple(
            content[start : start + PAGE_BYTES] == new[:PAGE_BYTES]
            for start in range(0, len(content), PAGE_BYTES)
        )
        for content in found
    }
    # Also the last page without the first: nothing is written back in order.
    assert {(True, False, False), (False, False, True), (True, False, True)} <= pages
    assert {(True, True, True), (False, False, False)} <= pages


def test_a_page_may_be_torn_at_sectors_and_at_any_byte() -> None:
    old, new = b"o" * PAGE_BYTES, b"n" * PAGE_BYTES
    found = outcomes(lambda disk, file: file.pwrite([new], 0), old)
    mixed = [content for content in found if content not in (old, new)]
    by_sectors = [
        content
        for content in mixed
        if all(
            len(set(content[start : start + SECTOR_BYTES])) == 1
            for start in range(0, PAGE_BYTES, SECTOR_BYTES)
        )
    ]
    assert any(content.startswith(b"o") for content in by_sectors), "not only prefixes"
    assert any(content.count(b"n") % SECTOR_BYTES for content in mixed), "also inside a sector"


def test_a_page_written_twice_may_be_found_in_between() -> None:
    def change(disk: SimulatedDisk, file: SimulatedFile) -> None:
        file.pwrite([b"1" * 100], 0)
        file.pwrite([b"2" * 100], 0)

    assert {b"0" * 100, b"1" * 100, b"2" * 100} <= outcomes(change, b"0" * 100)


def test_a_lost_page_below_the_new_size_reads_as_zeros() -> None:
    def change(disk: SimulatedDisk, file: SimulatedFile) -> None:
        file.pwrite([b"n" * (2 * PAGE_BYTES)], PAGE_BYTES)

    found = outcomes(change, b"o" * PAGE_BYTES)
    assert b"o" * PAGE_BYTES + bytes(PAGE_BYTES) + b"n" * PAGE_BYTES in found
    assert b"o" * PAGE_BYTES in found
    assert all(content.startswith(b"o" * PAGE_BYTES) for content in found)


def test_the_size_may_include_part_of_an_extension() -> None:
    found = outcomes(lambda disk, file: file.pwrite([b"n" * 50], 10), b"o" * 10)
    assert {10, 60} < {len(content) for content in found}


def test_an_unsynced_truncation_may_come_back() -> None:
    found = outcomes(lambda disk, file: file.truncate(3), b"0123456789")
    assert {b"012", b"0123456789"} <= found
    assert all(content.startswith(b"012") for content in found)


def test_a_synced_truncation_stays() -> None:
    def change(disk: SimulatedDisk, file: SimulatedFile) -> None:
        file.truncate(3)
        file.sync_data()

    assert outcomes(change, b"0123456789") == {b"012"}


def test_reserved_space_never_looks_like_data() -> None:
    def change(disk: SimulatedDisk, file: SimulatedFile) -> None:
        file.allocate(0, 1 << 20)
        file.pwrite([b"x"], 100)

    for content in outcomes(change, b"data"):
        assert content.startswith(b"data")
        assert len(content) <= 101
        assert set(content[4:]) <= set(b"\0x")


def test_unsynced_names_may_vanish_and_removed_ones_return() -> None:
    created, removed = set(), set()
    for seed in SEEDS:
        disk = new_disk(seed)
        synced_file(disk, b"old")
        disk.remove("/a")
        file = disk.open("/b", create=True)
        file.pwrite([b"new"], 0)
        file.sync_data()  # the bytes, not the name
        disk.power_cut()
        removed.add(disk.exists("/a"))
        created.add(disk.read("/b") if disk.exists("/b") else None)
    assert removed == {True, False}
    assert created == {b"new", None}


def test_sync_folder_fixes_names() -> None:
    for seed in SEEDS:
        disk = new_disk(seed)
        synced_file(disk, b"old")
        disk.remove("/a")
        disk.open("/b", create=True)
        disk.sync_folder("/")
        disk.power_cut()
        assert disk.list("/") == ["b"]


def test_a_removed_tree_may_come_back_in_part() -> None:
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.make_folder("/x")
        for name in "abc":
            disk.write_atomic(f"/x/{name}", b"")
        disk.remove_tree("/x")
        disk.power_cut()
        found.add("".join(disk.list("/x")) if disk.exists("/x") else None)
    assert {None, "", "a", "abc", "bc"} <= found


def test_replacing_a_file_leaves_the_old_or_the_new_one() -> None:
    found = set()
    for cut in range(1, 7):
        for seed in range(20):
            disk = new_disk(seed)
            disk.write_atomic("/a", b"old")
            disk.cut_after(cut)
            try:
                disk.write_atomic("/a", b"new!!")
            except PowerCut:
                disk.power_cut()
            found.add((cut, disk.read("/a")))
    assert found == {
        *((cut, b"old") for cut in range(1, 5)),
        (5, b"old"),  # all bytes written, the rename perhaps lost
        (5, b"new!!"),
        (6, b"new!!"),
    }


def test_power_goes_at_exactly_that_byte() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    disk.cut_after(7)
    file.pwrite([b"0123"], 0)
    with pytest.raises(PowerCut):
        file.pwrite([b"456", b"789"], 4)
    assert disk.bytes_written == 7
    for call in (file.size, file.sync_data, lambda: disk.exists("/a"), lambda: disk.list("/")):
        with pytest.raises(PowerCut):
            call()
    disk.power_cut()
    assert disk.exists("/") is True


def test_power_goes_before_an_operation() -> None:
    disk = new_disk()
    disk.cut_before(2)
    file = disk.open("/a", create=True)
    file.pwrite([b"x"], 0)
    with pytest.raises(PowerCut):
        file.sync_data()
    assert disk.operations == [("create", "/a"), ("write", "/a")]


def test_handles_from_before_the_cut_are_dead() -> None:
    disk = new_disk()
    file = synced_file(disk, b"x")
    lock = disk.lock("/lock")
    disk.power_cut()
    with pytest.raises(PowerCut):
        file.pread(1, 0)
    again = disk.lock("/lock")
    lock.release()
    with pytest.raises(StorageError):
        disk.lock("/lock")
    again.release()


def test_a_full_disk_takes_what_is_reserved_and_no_more() -> None:
    disk = new_disk()
    file = disk.open("/a", create=True)
    file.pwrite([b"0123"], 0)
    file.allocate(0, 8)
    disk.full = True
    assert disk.free_bytes("/") == 0
    file.pwrite([b"over"], 0)
    file.pwrite([b"4567"], 4)
    with pytest.raises(DiskFullError):
        file.pwrite([b"89"], 7)
    assert file.pread(100, 0) == b"over4568", "as much as fits is written"
    with pytest.raises(DiskFullError):
        file.allocate(0, 9)
    with pytest.raises(DiskFullError):
        disk.write_atomic("/b", b"x")
    assert not disk.exists("/b")
    disk.full = False
    file.pwrite([b"89"], 8)
    assert disk.free_bytes("/") > 0


def test_a_flipped_bit_stays_flipped() -> None:
    disk = new_disk()
    file = synced_file(disk, b"abc")
    disk.flip_bit("/a", 1, 1)
    assert file.pread(3, 0) == b"a`c"
    file.pwrite([b"d"], 3)
    file.sync_data()
    disk.power_cut()
    assert disk.read("/a") == b"a`cd"
    with pytest.raises(NotFoundError):
        disk.flip_bit("/absent", 0)


def test_a_failed_sync_is_not_repaired_by_the_next_one() -> None:
    disk = new_disk()
    file = synced_file(disk, b"old")
    file.pwrite([b"new"], 0)
    disk.fail_next("sync")
    with pytest.raises(StorageError):
        file.sync_data()
    file.sync_data()
    assert file.pread(3, 0) == b"new"
    disk.power_cut()
    assert disk.read("/a") == b"old"


def test_planned_failures_hit_the_named_operation_once() -> None:
    disk = new_disk()
    disk.fail_next("write", DiskFullError)
    file = disk.open("/a", create=True)
    with pytest.raises(DiskFullError):
        file.pwrite([b"x"], 0)
    file.pwrite([b"x"], 0)
    assert disk.operations == [("create", "/a"), ("write", "/a")]


def test_plans_can_be_given_up() -> None:
    disk = new_disk()
    disk.fail_next("write")
    disk.cut_after(1)
    disk.cut_before(0)
    disk.forget_plans()
    file = disk.open("/a", create=True)
    file.pwrite([b"unharmed"], 0)
    file.sync_data()
    assert disk.files() == {"/a": b"unharmed"}


def test_a_wiped_disk_is_empty_and_its_handles_are_dead() -> None:
    disk = new_disk()
    file = synced_file(disk, b"old")
    disk.full = True
    disk.wipe()
    assert disk.files() == {}
    with pytest.raises(PowerCut):
        file.size()
    disk.write_atomic("/a", b"new")
    assert disk.read("/a") == b"new"


def test_operations_are_listed_in_order() -> None:
    seen: list[tuple[str, str]] = []
    disk = SimulatedDisk(
        SimulatedRandom(1), on_operation=lambda operation, path: seen.append((operation, path))
    )
    disk.make_folder("/x")
    file = disk.open("/x/a", create=True)
    file.allocate(0, 10)
    file.pwrite([b"x"], 0)
    file.sync_data()
    file.truncate(0)
    disk.sync_folder("/x")
    disk.write_atomic("/x/b", b"")
    disk.remove("/x/a")
    disk.remove_tree("/x")
    disk.power_cut()
    assert disk.operations == seen
    assert seen == [
        ("make_folder", "/x"),
        ("create", "/x/a"),
        ("allocate", "/x/a"),
        ("write", "/x/a"),
        ("sync", "/x/a"),
        ("truncate", "/x/a"),
        ("sync_folder", "/x"),
        ("write_atomic", "/x/b"),
        ("remove", "/x/a"),
        ("remove_tree", "/x"),
        ("power_cut", "/"),
    ]


def test_a_rename_is_durable_with_its_folder_alone() -> None:
    found = set()
    for seed in SEEDS:
        disk = new_disk(seed)
        disk.write_atomic("/a", b"old")
        disk.write_atomic("/b", b"new")
        disk.rename("/b", "/a")
        disk.power_cut()
        found.add((disk.read("/a"), disk.exists("/b")))
        disk.write_atomic("/b", b"newer")
        disk.rename("/b", "/a")
        disk.sync_folder("/")
        disk.power_cut()
        assert (disk.read("/a"), disk.exists("/b")) == (b"newer", False)
    assert found == {(content, there) for content in (b"old", b"new") for there in (True, False)}
