"""Replay, snapshots and versions of the state log, on a simulated disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec
import pytest

from headrace.errors import (
    CorruptionError,
    FencedError,
    FormatError,
    TooLargeError,
    UnavailableError,
)
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.state_log import StateLog
from headrace.sbp_client.state_replay import SNAPSHOT, SNAPSHOT_FORMAT
from headrace.wire.sbp.records import INDEXED, RECORDS_STATE, encode_header, encode_index
from tests.log_cluster import Cluster, read_all
from tests.simulator.runtime import Simulation


class Register:
    """A list of what was applied; a snapshot has one chunk per entry."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str, object]] = []
        self.restored: int | None = None
        self.snapshot_version = 1

    def apply(self, version: int, kind: str, body: object) -> None:
        if kind == "bug":
            raise ZeroDivisionError
        self.entries.append((version, kind, body))

    def snapshot(self) -> tuple[int, Iterable[bytes]]:
        return self.snapshot_version, (msgspec.msgpack.encode(entry) for entry in self.entries)

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        assert not self.entries, "restore comes before any apply"
        assert self.restored is None, "and only once"
        self.restored = version
        self.entries = [
            msgspec.msgpack.decode(chunk, type=tuple[int, str, Any]) for chunk in chunks
        ]


async def open_log(
    client: SbpClient, register: Register, epoch: int, *, clean: bool = True, version_max: int = 1
) -> StateLog:
    return await StateLog.open(
        client,
        name="s/test",
        epoch=epoch,
        clean=clean,
        apply=register.apply,
        snapshot=register.snapshot,
        restore=register.restore,
        runtime=client.runtime,
        version_max=version_max,
    )


def simulate(test: Callable[[SbpClient], Coroutine[Any, Any, None]]) -> None:
    """Run a test body with a placement manager and a data node in one simulated process."""
    simulation = Simulation(1)

    async def main() -> None:
        cluster = Cluster(simulation.runtime("host"), "/data", tcp=False, sqlite=False)
        await cluster.start()
        await test(cluster.client())
        await cluster.close()

    simulation.run(main())


async def replayed(client: SbpClient, epoch: int) -> Register:
    register = Register()
    log = await open_log(client, register, epoch)
    await log.close()
    return register


def test_events_are_applied_in_order_and_replayed() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        log = await open_log(client, register, 1)
        offsets = await asyncio.gather(*(log.append("set", [i, "x"]) for i in range(50)))
        assert offsets == list(range(0, 100, 2)), "each is followed by its copy"
        assert await log.append_many([("a", 1), ("b", {"k": b"v"})]) == [100, 101]
        assert await log.append_many([]) == []
        assert log.applied_offset == 104
        await log.close()
        with pytest.raises(UnavailableError):
            await log.append("late", 0)
        expected = [*((1, "set", [i, "x"]) for i in range(50)), (1, "a", 1), (1, "b", {"k": b"v"})]
        assert register.entries == expected
        assert (await replayed(client, 2)).entries == expected

    simulate(body)


def test_an_answer_comes_after_the_event_is_applied() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        log = await open_log(client, register, 1)
        await log.append("x", 1)
        assert register.entries == [(1, "x", 1)]
        await log.close()

    simulate(body)


def test_a_snapshot_replaces_what_it_covers() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        log = await open_log(client, register, 1)
        for i in range(10):
            await log.append("e", i)
        in_flight = [asyncio.ensure_future(log.append("during", i)) for i in range(5)]
        await asyncio.sleep(0)
        covers = await log.write_snapshot()
        assert covers == 2 * 10, "events in flight are not part of it"
        await asyncio.gather(*in_flight)
        await log.append("after", 0)
        (start, _) = await client.bounds(log.stream.stream_id)
        assert start == 0, "the only copy is kept until the next one"
        await log.write_snapshot()
        (start, _) = await client.bounds(log.stream.stream_id)
        assert start == covers, "trimmed below"
        await log.append("after", 1)
        await log.close()
        again = await replayed(client, 2)
        assert again.restored == 1
        assert again.entries == register.entries

    simulate(body)


def test_what_counts_for_the_next_snapshot_is_what_a_restart_would_replay() -> None:
    async def body(client: SbpClient) -> None:
        log = await open_log(client, Register(), 1)
        for i in range(10):
            await log.append("e", bytes(100 * i))
        in_flight = asyncio.ensure_future(log.append("during", bytes(1000)))
        await asyncio.sleep(0)
        before = log.bytes_since_snapshot
        assert before > 5500
        writing = asyncio.ensure_future(log.write_snapshot())
        await asyncio.sleep(0)
        assert log.bytes_since_snapshot == before, "nothing is covered by what is being written"
        await writing
        await in_flight
        assert 1000 < log.bytes_since_snapshot < 1100, "in flight when the state was taken"
        await log.close()
        again = await open_log(client, Register(), 2)
        assert again.bytes_since_snapshot == log.bytes_since_snapshot
        assert again.snapshot_bytes == log.snapshot_bytes > 4500
        await again.close()

    simulate(body)


def test_an_interrupted_snapshot_stays_due() -> None:
    async def body(client: SbpClient) -> None:
        log = await open_log(client, Register(), 1)
        for _ in range(10):
            await log.append("e", bytes(100))
        writing = asyncio.ensure_future(log.write_snapshot())
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        assert log.snapshot_due(1000)
        await log.write_snapshot()
        assert not log.snapshot_due(1)
        await log.close()

    simulate(body)


def test_a_state_larger_than_the_limit_is_not_written_over_and_over() -> None:
    async def body(client: SbpClient) -> None:
        log = await open_log(client, Register(), 1)
        await log.append("e", bytes(10_000))
        assert log.snapshot_due(1000)
        await log.write_snapshot()
        assert not log.snapshot_due(1000)
        await log.append("e", bytes(5_000))
        assert not log.snapshot_due(1000), "less than the snapshot took"
        await log.close()
        again = await open_log(client, Register(), 2)
        assert not again.snapshot_due(1000), "and a restart knows"
        await again.append("e", bytes(5_000))
        assert again.snapshot_due(1000)
        await again.close()

    simulate(body)


def test_an_empty_state_has_a_snapshot_too() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        log = await open_log(client, register, 1)
        await log.write_snapshot()
        await log.append("e", 1)
        await log.close()
        again = await replayed(client, 2)
        assert (again.restored, again.entries) == (1, [(1, "e", 1)])

    simulate(body)


def test_the_newest_complete_snapshot_wins() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        log = await open_log(client, register, 1)
        for i in range(3):
            await log.append("e", i)
            register.snapshot_version = 1
            await log.write_snapshot()
        await log.close()
        assert (await replayed(client, 2)).entries == register.entries

    simulate(body)


def raw_batch(records: list[bytes], base_offset: int) -> tuple[bytearray, list[bytes]]:
    positions = [sum(map(len, records[:i])) for i in range(len(records))]
    body = b"".join([*records, encode_index(positions)])
    header = encode_header(
        base_offset=base_offset,
        body=[body],
        record_count=len(records),
        base_timestamp=0,
        max_timestamp=0,
        attributes=RECORDS_STATE | INDEXED,
    )
    return header, [body]


async def write_raw(client: SbpClient, epoch: int, *records: tuple[int, str, object]) -> None:
    made = await client.create_stream(name="s/test")
    stream = await OwnedStream.open(client, made.stream_id, epoch, clean=True)
    for record in records:
        data = [msgspec.msgpack.encode(record)]
        await stream.append(*raw_batch(data, stream.next_offset))
    await stream.close()


def chunk(id_: int, index: int, count: int, covers: int, data: bytes, version: int = 1) -> Any:
    return (SNAPSHOT_FORMAT, SNAPSHOT, (id_, index, count, covers, version, data))


def entry(kind: str) -> bytes:
    return msgspec.msgpack.encode((1, kind, 0))


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_an_incomplete_snapshot_is_as_if_never_begun(missing: int) -> None:
    """A crash between chunks, or chunks of a beginning that was lost."""

    async def body(client: SbpClient) -> None:
        chunks = [chunk(2, i, 3, 2, entry("wrong")) for i in range(3)]
        del chunks[missing]
        await write_raw(client, 1, (1, "a", 1), (1, "b", 2), *chunks, (1, "c", 3))
        again = await replayed(client, 2)
        assert again.restored is None
        assert [kind for _, kind, _ in again.entries] == ["a", "b", "c"]

    simulate(body)


def test_chunks_of_two_attempts_are_not_mixed() -> None:
    async def body(client: SbpClient) -> None:
        await write_raw(
            client,
            1,
            (1, "a", 0),
            chunk(1, 0, 2, 1, entry("first attempt")),
            chunk(2, 0, 2, 1, entry("second 0")),
            (1, "between", 0),
            chunk(2, 1, 2, 1, entry("second 1")),
            chunk(9, 0, 2, 4, entry("third attempt")),
        )
        again = await replayed(client, 2)
        assert [kind for _, kind, _ in again.entries] == ["second 0", "second 1", "between"]

    simulate(body)


@pytest.mark.parametrize(
    "record",
    [
        (2, "newer", 0),
        (SNAPSHOT_FORMAT + 1, SNAPSHOT, (0, 0, 1, 0, 1, b"")),
        (SNAPSHOT_FORMAT, SNAPSHOT, (0, 0, 1, 0, 2, b"")),
    ],
)
def test_what_newer_code_wrote_is_refused(record: tuple[int, str, object]) -> None:
    async def body(client: SbpClient) -> None:
        await write_raw(client, 1, record)
        with pytest.raises(FormatError):
            await open_log(client, Register(), 2)

    simulate(body)


def test_newer_code_reads_older_events() -> None:
    async def body(client: SbpClient) -> None:
        await write_raw(client, 1, (1, "old", 0))
        register = Register()
        log = await open_log(client, register, 2, version_max=3)
        await log.append("new", 1, version=3)
        with pytest.raises(FormatError):
            await log.append("too new", 1, version=4)
        assert register.entries == [(1, "old", 0), (3, "new", 1)]
        await log.close()

    simulate(body)


def test_bytes_that_are_no_events_are_corruption() -> None:
    async def body(client: SbpClient) -> None:
        made = await client.create_stream(name="s/test")
        stream = await OwnedStream.open(client, made.stream_id, 1, clean=True)
        await stream.append(*raw_batch([b"\xc1"], 0))
        await stream.close()
        with pytest.raises(CorruptionError):
            await open_log(client, Register(), 2)

    simulate(body)


def test_a_fenced_log_takes_nothing_more() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        old = await open_log(client, register, 1)
        await old.append("a", 1)
        new = await open_log(client, Register(), 2)
        results = await asyncio.gather(
            *(old.append("stale", i) for i in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, FencedError) for result in results)
        with pytest.raises(FencedError):
            await old.write_snapshot()
        assert isinstance(old.failure, FencedError)
        assert register.entries == [(1, "a", 1)], "nothing was applied that is not durable"
        assert len(await read_all(client, new.stream.stream_id)) == 2, "and its copy"
        await old.close()
        await new.close()

    simulate(body)


def test_an_event_that_cannot_be_applied_stops_the_log() -> None:
    async def body(client: SbpClient) -> None:
        log = await open_log(client, Register(), 1)
        with pytest.raises(CorruptionError):
            await log.append("bug", 1)
        with pytest.raises(CorruptionError):
            await log.append("fine", 1)
        await log.close()

    simulate(body)


def test_oversized_events_are_refused_before_anything_is_written() -> None:
    async def body(client: SbpClient) -> None:
        log = await open_log(client, Register(), 1)
        with pytest.raises(TooLargeError):
            await log.append("big", b"x" * (9 << 20))
        assert await log.append("small", 1) == 0
        await log.close()

    simulate(body)


def test_a_cancelled_caller_does_not_tear_the_state() -> None:
    async def body(client: SbpClient) -> None:
        register = Register()
        log = await open_log(client, register, 1)
        first = asyncio.ensure_future(log.append("a", 1))
        await asyncio.sleep(0)
        first.cancel()
        await log.append("b", 2)
        assert [kind for _, kind, _ in register.entries] == ["a", "b"]
        await log.close()

    simulate(body)
