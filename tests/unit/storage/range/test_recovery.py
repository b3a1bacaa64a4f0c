"""What recovery makes of damaged, cut and missing files."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from headrace.errors import CorruptionError, StorageError
from headrace.storage import CorruptSpan, LogStore, RangeKey, StorageSettings
from headrace.storage.layout import format_base
from headrace.storage.segments.formats import MARK_BYTES, Mark, encode_mark
from headrace.storage.segments.scan import Scanner
from headrace.wire.sbp.messages import Durability
from headrace.wire.sbp.records import encode_header
from tests.simulator.disk import SimulatedFile
from tests.simulator.runtime import PowerCut, SimulatedDisk
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    SMALL,
    ManualClock,
    append_many,
    append_one,
    cut_power,
    end_process,
    joined,
    make_batch,
    open_store,
    read_all,
    runtime_on,
    simulated_disk,
    turns,
)

RANGE = f"{FOLDER}/streams/7/0"


def log_path(base: int) -> str:
    return f"{RANGE}/{format_base(base)}.log"


def index_path(base: int) -> str:
    return f"{RANGE}/{format_base(base)}.index"


async def written_store(
    groups: int, *, level: Durability = Durability.SYNCED, size: int = 100
) -> tuple[SimulatedDisk, list[bytes]]:
    """A store after kill -9: every batch in a group of its own, nothing closed."""
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=level)
    written: list[bytes] = []
    for _ in range(groups):
        written += await append_many(log, 1, size=size)
    await end_process(disk, store)
    return disk, written


@pytest.mark.parametrize("tail", [bytes(3000), b"\x23" * 300, b"\xa5hrm" + bytes(40), b"x"])
async def test_a_torn_tail_is_cut_off(tail: bytes) -> None:
    disk, written = await written_store(3)
    size = disk.size(log_path(0)) - MARK_BYTES  # the next group is written over what closes one
    disk.open(log_path(0)).pwrite([tail], size)
    found = disk.size(log_path(0))
    store = await open_store(disk)
    log = store.range(KEY)
    assert not store.clean
    assert log.state().truncated_bytes == found - size
    assert log.state().corrupt == ()
    assert disk.size(log_path(0)) == size
    assert await read_all(log) == written
    written += await append_many(log, 2)
    await cut_power(disk, store)
    store = await open_store(disk)
    assert await read_all(store.range(KEY)) == written
    assert store.range(KEY).state().truncated_bytes == 0
    await store.close()


async def test_damage_below_a_later_mark_is_corruption() -> None:
    disk, written = await written_store(5)
    size = disk.size(log_path(0))
    disk.flip_bit(log_path(0), 1 * (MARK_BYTES + 100) + MARK_BYTES + 70)  # body of batch 1
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.state().corrupt == (CorruptSpan(1, 2),)
    assert store.statistics()["corrupt_spans"] == 1
    assert disk.size(log_path(0)) == size
    assert b"".join(await log.read(0, 10_000)) == written[0]
    with pytest.raises(CorruptionError) as caught:
        await log.read(1, 10_000)
    assert (caught.value.data["start"], caught.value.data["end"]) == (1, 2)
    assert b"".join(await log.read(2, 10_000)) == b"".join(written[2:])
    assert log.next_offset == 5
    await append_many(log, 1)
    await store.close()
    store = await open_store(disk)  # now known from the index file
    assert store.range(KEY).state().corrupt == (CorruptSpan(1, 2),)
    assert await store.range(KEY).offset_at(-1) == 0
    await store.close()


async def test_a_flipped_bit_in_the_last_group_after_kill_is_corruption() -> None:
    """Nothing was written behind it but the mark that closes it: it was acknowledged, not torn."""
    for position in (0, 20, MARK_BYTES, MARK_BYTES + 13, MARK_BYTES + 70, MARK_BYTES + 99):
        disk, written = await written_store(3)
        disk.flip_bit(log_path(0), 2 * (MARK_BYTES + 100) + position)
        store = await open_store(disk)
        log = store.range(KEY)
        lost = position >= MARK_BYTES  # else its mark alone was hit
        assert log.next_offset == 3, "its offset is given to nobody else"
        assert log.state().corrupt == ((CorruptSpan(2, 3),) if lost else ())
        assert log.state().truncated_bytes == 0
        if lost:
            assert b"".join(await log.read(0, 1000)) == b"".join(written[:2])
        else:
            assert await read_all(log) == written
        await store.close()


async def test_a_group_whose_sync_failed_is_not_closed() -> None:
    """What was never synced must not be called so: it is a tail, and may be torn."""
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    await append_many(log, 1)
    size = disk.size(log_path(0))
    disk.fail_next("sync")
    done, _ = append_one(log)
    with pytest.raises(StorageError):
        await done
    await end_process(disk, store)
    assert disk.size(log_path(0)) == size + 100, "a mark and a batch over the one that closed"
    disk.flip_bit(log_path(0), size + 50)
    store = await open_store(disk)
    assert store.range(KEY).next_offset == 1
    assert store.range(KEY).state().corrupt == ()
    await store.close()


async def test_after_a_power_cut_the_last_group_is_tail_until_the_range_was_quiet() -> None:
    """The mark that closes a group is not synced itself; the one of a quiet range is."""
    position = 2 * (MARK_BYTES + 100) + MARK_BYTES + 70
    disk, written = await written_store(3)
    store = await open_store(disk)
    await store.range(KEY)._writer.close_mark()
    await turns(50)
    assert disk.size(log_path(0)) == 3 * (MARK_BYTES + 100) + MARK_BYTES
    await cut_power(disk, store)
    disk.flip_bit(log_path(0), position)
    store = await open_store(disk)
    assert store.range(KEY).next_offset == 3
    assert store.range(KEY).state().corrupt == (CorruptSpan(2, 3),)
    assert b"".join(await store.range(KEY).read(0, 1000)) == b"".join(written[:2])
    await store.close()


async def test_a_quiet_range_closes_its_tail_by_itself() -> None:
    for level in Durability:
        disk = simulated_disk()
        clock = ManualClock()
        runtime = replace(runtime_on(disk), clock=clock)
        settings = StorageSettings(idle_ms=900, idle_file_ms=2500, min_free_bytes=0)
        store = await LogStore.open(runtime, FOLDER, settings)
        log = await store.create_range(KEY, start_offset=0, durability=level)
        await append_many(log, 1)
        operations = len(disk.operations)
        for _ in range(1 if level is Durability.SYNCED else 3):
            clock.advance(1.0)
            await turns(50)
            assert len(disk.operations) == operations, "not quiet for long enough"
        clock.advance(1.0)
        await turns(50)
        assert len(disk.operations) > operations
        operations = len(disk.operations)
        for _ in range(3):
            clock.advance(1.0)
            await turns(50)
        assert len(disk.operations) == operations, "once is enough"
        await cut_power(disk, store)
        disk.flip_bit(log_path(0), MARK_BYTES + 70)
        store = await open_store(disk)
        assert store.range(KEY).next_offset == 1
        with pytest.raises(CorruptionError):
            await store.range(KEY).read(0, 100)
        await store.close()


async def test_a_recovered_tail_is_closed_once_the_range_is_quiet() -> None:
    disk, _ = await written_store(3)
    clock = ManualClock()
    runtime = replace(runtime_on(disk), clock=clock)
    settings = StorageSettings(idle_ms=900, min_free_bytes=0)
    store = await LogStore.open(runtime, FOLDER, settings)
    for _ in range(3):
        await turns(50)
        clock.advance(1.0)
    await turns(50)
    assert disk.size(log_path(0)) == 3 * (MARK_BYTES + 100) + MARK_BYTES
    await store.close()


async def test_opening_quiet_ranges_writes_and_syncs_nothing() -> None:
    """Ten thousand of them are opened after a kill: a sync for each took seconds."""
    disk, written = await written_store(3)
    store = await open_store(disk)
    await store.range(KEY)._writer.close_mark()
    await turns(50)
    await end_process(disk, store)
    for _ in range(2):
        seen = len(disk.operations)
        store = await open_store(disk)
        assert {path for _, path in disk.operations[seen:]} <= {f"{FOLDER}/lock"}
        assert await read_all(store.range(KEY)) == written
        await end_process(disk, store)


async def test_a_group_is_written_over_the_closing_mark_that_recovery_found() -> None:
    """Cut in that write at any byte: the mark is gone or not, the batches before it are there."""
    for cut in range(1, 2 * MARK_BYTES + 100):
        disk, written = await written_store(2)
        store = await open_store(disk)
        await store.range(KEY)._writer.close_mark()
        await turns(50)
        await end_process(disk, store)
        size = disk.size(log_path(0))
        store = await open_store(disk)
        disk.cut_after(cut)
        done, data = append_one(store.range(KEY))
        with suppress(StorageError):
            await done
        await cut_power(disk, store)
        store = await open_store(disk)
        found = await read_all(store.range(KEY))
        assert found in (written, [*written, data])
        assert store.range(KEY).state().corrupt == ()
        assert disk.size(log_path(0)) <= size + 100
        await append_many(store.range(KEY), 1)
        await store.close()


async def test_several_damaged_batches_in_one_group() -> None:
    disk = simulated_disk()
    store = await open_store(disk, StorageSettings(idle_ms=10**6, min_free_bytes=0))
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 6)
    await append_many(log, 1)
    await end_process(disk, store)
    disk.flip_bit(log_path(0), MARK_BYTES + 110)  # a header
    disk.flip_bit(log_path(0), MARK_BYTES + 370)  # a body
    store = await open_store(disk)
    log = store.range(KEY)
    # Batch 2 lies between the two and cannot be told from a forgery: it goes with them.
    assert log.state().corrupt == (CorruptSpan(1, 4),)
    assert b"".join(await log.read(4, 200)) == b"".join(written[4:6])
    await store.close()


async def test_a_message_cannot_pass_for_a_batch_or_a_mark() -> None:
    """The payload of a damaged batch holds a copy of the log itself."""
    disk, written = await written_store(3)
    store = await open_store(disk)
    log = store.range(KEY)
    copy = disk.read(log_path(0))[:264]
    header, body = make_embedding(log.next_offset, copy)
    await log.append(header, body)
    await append_many(log, 1)
    await end_process(disk, store)
    disk.flip_bit(log_path(0), 3 * (MARK_BYTES + 100) + MARK_BYTES + 10)  # its length
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.state().corrupt == (CorruptSpan(3, 4),)
    assert log.next_offset == 5
    assert b"".join(await log.read(0, 10_000)) == b"".join(written)
    await store.close()


def make_embedding(offset: int, payload: bytes) -> tuple[bytearray, list[bytes]]:
    header = encode_header(
        base_offset=offset, body=[payload], record_count=1, base_timestamp=0, max_timestamp=0
    )
    return header, [payload]


async def closed_segments() -> tuple[SimulatedDisk, list[bytes], list[int]]:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0)
    written = await append_many(log, 60)
    bases = [segment.base for segment in log.segments()]
    await store.close()
    return disk, written, bases


@pytest.mark.parametrize("victim", [0, 1])
async def test_a_missing_file_is_corruption(victim: int) -> None:
    disk, written, bases = await closed_segments()
    lost = CorruptSpan(bases[victim], bases[victim + 1])
    disk.remove(log_path(bases[victim]))
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.state().corrupt == (lost,)
    assert log.next_offset == 60
    with pytest.raises(CorruptionError) as caught:
        await log.read(lost.start, 1000)
    assert caught.value.data["end"] == lost.end
    assert b"".join(await log.read(lost.end, 100)) == written[lost.end]
    await store.close()


async def test_a_short_file_is_corruption() -> None:
    disk, written, bases = await closed_segments()
    path = log_path(bases[-1])
    disk.open(path).truncate(disk.size(path) - 50)
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.state().corrupt == (CorruptSpan(59, 60),)
    assert log.next_offset == 60
    more = await append_many(log, 1)
    with pytest.raises(CorruptionError):
        await log.read(59, 100)
    assert b"".join(await log.read(60, 100)) == more[0]
    assert b"".join(await log.read(58, 100)) == written[58]
    await store.close()


@pytest.mark.parametrize("damage", ["flip", "remove", "empty", "foreign"])
async def test_a_bad_index_is_rebuilt(damage: str) -> None:
    disk, written, bases = await closed_segments()
    for base in bases:
        path = index_path(base)
        if damage == "flip":
            disk.flip_bit(path, disk.size(path) // 2)
        elif damage == "remove":
            disk.remove(path)
        elif damage == "empty":
            disk.write_atomic(path, b"")
        else:
            disk.write_atomic(path, disk.read(index_path(bases[0])))
    store = await open_store(disk)
    log = store.range(KEY)
    assert await read_all(log) == written
    assert [segment.base for segment in log.segments()] == bases
    assert log.state().corrupt == ()
    await store.close()


async def test_an_index_that_rots_while_the_store_runs_is_rebuilt() -> None:
    disk, written, bases = await closed_segments()
    settings = StorageSettings(
        segment_bytes_max=SMALL.segment_bytes_max, open_files_max=1, idle_ms=10**6
    )
    store = await open_store(disk, settings)
    log = store.range(KEY)
    assert await read_all(log) == written  # all but one index have left the memory
    disk.flip_bit(index_path(bases[0]), 100)
    assert await read_all(log) == written
    await store.close()


async def test_recovery_starts_at_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    disk, written, _ = await closed_segments()
    read = 0
    pread = SimulatedFile.pread

    def counting(self: SimulatedFile, length: int, offset: int) -> bytes:
        nonlocal read
        data = pread(self, length, offset)
        read += len(data)
        return data

    monkeypatch.setattr(SimulatedFile, "pread", counting)
    store = await open_store(disk)
    assert read == 0
    await append_many(store.range(KEY), 1)
    await end_process(disk, store)
    read = 0
    store = await open_store(disk)
    assert 0 < read < 400
    assert len(await read_all(store.range(KEY))) == len(written) + 1
    await store.close()


async def test_a_busy_range_is_checkpointed_on_the_way() -> None:
    disk = simulated_disk()
    settings = StorageSettings(checkpoint_bytes=1000, idle_ms=10**6, min_free_bytes=0)
    store = await open_store(disk, settings)
    log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    for _ in range(30):
        await append_many(log, 1)
    saves = [path for name, path in disk.operations if name == "write_atomic"]
    assert 2 <= saves.count(index_path(0)) <= 4
    await cut_power(disk, store)
    store = await open_store(disk)
    assert store.range(KEY).next_offset >= 20  # a checkpoint is synced first
    await store.close()


async def test_damage_found_by_a_read_is_remembered() -> None:
    disk, written, bases = await closed_segments()
    disk.flip_bit(log_path(bases[1]), MARK_BYTES + 100 + 70)
    store = await open_store(disk)
    log = store.range(KEY)
    assert log.state().corrupt == ()  # the index made a scan unnecessary
    hit = bases[1] + 1
    assert b"".join(await log.read(bases[1], 10_000)) == written[bases[1]]
    assert log.state().corrupt == (CorruptSpan(hit, hit + 1),)
    with pytest.raises(CorruptionError):
        await log.read(hit, 100)
    assert b"".join(await log.read(hit + 1, 100)) == written[hit + 1]
    assert await log.offset_at(0) == 0
    await store.close()
    store = await open_store(disk)
    assert store.range(KEY).state().corrupt == (CorruptSpan(hit, hit + 1),)
    await store.close()


async def test_a_written_range_that_lost_its_tail_goes_on_at_the_trimmed_start() -> None:
    disk = simulated_disk(seed=3)
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
    await append_many(log, 5)
    await log.trim(4)
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    assert (log.start_offset, log.state().corrupt) == (4, ())
    assert log.next_offset in (4, 5)
    more = await append_many(log, 2)
    assert (await read_all(log))[-2:] == more
    await cut_power(disk, store)
    store = await open_store(disk)
    assert store.range(KEY).state().corrupt == ()
    await store.close()


async def test_deleting_a_stream_is_all_or_nothing_in_the_end() -> None:
    """Cut before every single operation of the deletion: never half a stream."""
    for cut in range(12):
        disk = simulated_disk(seed=cut)
        store = await open_store(disk)
        written: list[list[bytes]] = []
        for index in range(2):
            log = await store.create_range(RangeKey(7, index), start_offset=0)
            written.append(await append_many(log, 30))
        disk.cut_before(cut)
        try:
            await store.delete_stream(7)
            finished = True
        except PowerCut:
            finished = False
        await cut_power(disk, store)
        store = await open_store(disk)
        if store.ranges():
            assert not finished
            logs = [store.range(RangeKey(7, index)) for index in range(2)]
            assert [await read_all(log) for log in logs] == written
        else:
            assert disk.list(f"{FOLDER}/streams") == []
        await store.close()


async def test_trimming_may_be_cut_anywhere() -> None:
    for cut in range(20):
        disk = simulated_disk(seed=cut)
        store = await open_store(disk)
        log = await store.create_range(KEY, start_offset=0)
        written = await append_many(log, 60)
        disk.cut_before(cut)
        with suppress(PowerCut):
            await log.trim(45)
        await cut_power(disk, store)
        store = await open_store(disk)
        log = store.range(KEY)
        assert log.start_offset in (0, 45)
        assert await read_all(log) == written[log.start_offset :]
        assert log.state().corrupt == ()
        if log.start_offset == 45:
            assert all(segment.end > 45 for segment in log.segments())
        await store.close()


async def test_a_range_whose_creation_was_cut_does_not_exist() -> None:
    for cut in range(4):
        disk = simulated_disk(seed=cut)
        store = await open_store(disk)
        disk.cut_before(cut)
        try:
            await store.create_range(KEY, start_offset=0, writer_epoch=3)
            finished = True
        except PowerCut:
            finished = False
        await cut_power(disk, store)
        store = await open_store(disk)
        assert len(store.ranges()) == finished
        log = await store.create_range(KEY, start_offset=0, writer_epoch=3)
        await append_many(log, 1)
        await store.close()


async def test_the_clean_stop_marker_is_consumed_durably() -> None:
    for seed in range(8):  # an unsynced removal would come back with some of them
        disk = simulated_disk(seed)
        await (await open_store(disk)).close()
        store = await open_store(disk)
        assert store.clean
        await cut_power(disk, store)
        store = await open_store(disk)
        assert not store.clean
        await store.close()
    disk, _, _ = await closed_segments()
    store = await open_store(disk)
    assert store.clean
    done, _ = append_one(store.range(KEY))
    await done
    await end_process(disk, store)
    store = await open_store(disk)
    assert not store.clean
    await store.close()


def test_a_mark_that_does_not_continue_the_file_is_none() -> None:
    """Bytes that an earlier recovery cut away must not come back beside newer ones."""
    binding = 77
    for second, valid in ((Mark(6, 0, 1), True), (Mark(5, 0, 1), False), (Mark(6, 0, 2), False)):
        disk = simulated_disk()
        file = disk.open("/log", create=True)
        batches = [joined(make_batch(offset)) for offset in range(2)]
        position = MARK_BYTES + 100
        file.pwrite(
            [
                encode_mark(Mark(5, 0, 0), binding=binding, position=0),
                batches[0],
                encode_mark(second, binding=binding, position=position),
                batches[1],
            ],
            0,
        )
        scan = Scanner(
            file, size=file.size(), base=0, binding=binding, index_interval_bytes=100
        ).run()
        assert scan.checkpoint.end.offset == (2 if valid else 1)
        assert scan.torn_bytes == (0 if valid else MARK_BYTES + 100)


async def test_a_tail_lost_below_a_trim_leaves_no_file_to_sync() -> None:
    """A `written` range that was trimmed to its end: what a power cut leaves below is dropped."""
    dropped = 0
    for seed in range(12):
        disk = simulated_disk(seed)
        store = await open_store(disk)
        log = await store.create_range(KEY, start_offset=0, durability=Durability.WRITTEN)
        await append_many(log, 12, size=120)
        await log.trim(12)
        await cut_power(disk, store)
        store = await open_store(disk)
        log = store.range(KEY)
        assert log.start_offset == log.next_offset == 12
        dropped += not any(path.endswith(".log") for path in disk.files())
        await append_many(log, 1)
        assert len(await read_all(log)) == 1
        await store.close()
    assert dropped
