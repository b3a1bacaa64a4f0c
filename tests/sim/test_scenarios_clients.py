"""Failure scenarios F14, F15, F17 to F19 and F23: what readers and writers meet."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import (
    CorruptionError,
    InvalidArgumentError,
    OffsetOutOfRangeError,
    StateError,
)
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.log_cluster import batch, bodies
from tests.sim.ending import insist
from tests.sim.scene import Scene, failing, play


@pytest.mark.parametrize("seed", range(3))
def test_f14_a_flipped_bit_is_served_by_another_replica_and_repaired(seed: int) -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 6)
        await scene.client.seal(stream, 0)
        await scene.until_replicated(stream)
        host = scene.hosts(stream, 0)[seed]
        scene.cluster.crash(host, power_cut=False)  # and its caches
        path = next(
            path
            for path in scene.simulation.disk(host).files()
            if f"/streams/{stream}/0/" in path and path.endswith(".log")
        )
        content = scene.simulation.disk(host).read(path)
        position = content.index(b"record 3")
        scene.simulation.disk(host).flip_bit(path, position)
        await scene.cluster.start_node(host)
        try:
            found = await scene.fetch_from(host, stream, 2)
        except CorruptionError:
            pass  # 2503: somebody else has it
        else:
            assert found[0] == (2, scene.written[stream][2]), "repaired already"
        await scene.check_written(stream)

        async def whole() -> bool:
            try:
                return dict(await scene.fetch_from(host, stream, 0)) == scene.written[stream]
            except CorruptionError:
                return False

        deadline = scene.simulation.time() + 60
        while not await whole():
            assert scene.simulation.time() < deadline, "not repaired"
            await scene.sleep(0.5)

    play(script, seed=seed)


def test_f15_a_full_replica_is_left_for_another_node() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 3)
        full = scene.primary(stream)
        scene.simulation.disk(full).full = True
        await insist(lambda: scene.append(stream, 40))
        assert full not in scene.hosts(stream), "sealed and moved"
        await scene.sleep(3.0)
        for _ in range(4):
            other = await scene.create(replicas=3)
            assert full not in scene.hosts(other), "a full node gets no new ranges"
        await scene.check_written(stream)

    play(script)


def test_f15_a_full_primary_does_not_say_that_its_range_is_the_last() -> None:
    """It cannot note the seal; what it answers readers must not depend on that."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        end = await scene.append(stream, 3)
        full = scene.primary(stream)
        scene.simulation.disk(full).full = True
        await scene.client.seal(stream, 0)
        await scene.append(stream, 2)
        error = await failing(scene.fetch_from(full, stream, end, max_wait_ms=200))
        assert isinstance(error, StateError)
        refused = await failing(scene.append_to(full, stream, 0))
        assert isinstance(refused, StateError)
        await scene.check_written(stream)

    play(script)


def test_f17_a_fetch_at_the_end_waits_for_data_or_its_time() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        end = await scene.append(stream, 2)
        primary = scene.primary(stream)
        before = scene.simulation.time()
        assert await scene.fetch_from(primary, stream, end, max_wait_ms=800) == []
        assert 0.7 < scene.simulation.time() - before < 1.2
        waiting = asyncio.ensure_future(scene.fetch_from(primary, stream, end, max_wait_ms=30_000))
        await scene.sleep(0.5)
        assert not waiting.done()
        before = scene.simulation.time()
        await scene.append(stream)
        assert [offset for offset, _ in await waiting] == [end]
        assert scene.simulation.time() - before < 0.5

    play(script)


def test_f18_a_reader_crosses_seals() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        for index in range(4):
            await scene.append(stream, 3)
            await scene.client.seal(stream, index)
        await scene.append(stream, 3)
        reader = scene.cluster.client("reader")
        offset, found = 0, []
        while offset < 15:
            fetched = await reader.fetch(stream, offset, max_bytes=1 << 20, max_wait_ms=500)
            found += bodies(fetched.pieces)
            offset = fetched.next_offset
        assert [offset for offset, _ in found] == list(range(15))
        assert dict(found) == scene.written[stream]
        await reader.close()

    play(script)


def test_f19_trim_below_and_above_a_reader() -> None:
    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        await scene.append(stream, 5)
        await scene.client.seal(stream, 0)
        await scene.append(stream, 5)
        reader = scene.cluster.client("reader")
        await scene.client.trim(stream, 3)
        fetched = await reader.fetch(stream, 4, max_bytes=1, max_wait_ms=0)
        assert bodies(fetched.pieces) == [(4, scene.written[stream][4])], "not affected"
        await scene.client.trim(stream, 7)
        error = await failing(reader.fetch(stream, 4, max_bytes=1, max_wait_ms=0))
        assert isinstance(error, OffsetOutOfRangeError)
        start, _ = await reader.bounds(stream)
        assert start == 7, "where it goes on"
        fetched = await reader.fetch(stream, start, max_bytes=1, max_wait_ms=0)
        assert bodies(fetched.pieces)[0] == (7, scene.written[stream][7])
        await reader.close()

    play(script)


async def late_trim(scene: Scene) -> None:
    """A trim that was asked for earlier arrives after a later one."""
    stream = await scene.create(replicas=3)
    await scene.append(stream, 9)
    await scene.client.trim(stream, 3)
    await scene.client.trim(stream, 7)
    error = await failing(scene.client.trim(stream, 3))
    assert isinstance(error, InvalidArgumentError)
    assert scene.ranges(stream)[0].start == 7
    for host in scene.hosts(stream):
        assert (await scene.describe(host, stream, 0)).start_offset == 7


def test_f19_a_late_trim_does_not_move_back() -> None:
    play(late_trim)


@pytest.mark.parametrize("seed", range(4))
def test_f23_goaway_in_a_window_of_64(seed: int) -> None:
    """The primary is stopped in order while 64 appends are under way."""

    async def script(scene: Scene) -> None:
        stream = await scene.create(replicas=3)
        primary = scene.primary(stream)

        async def send(sequence: int) -> int:
            body = b"window %d" % sequence
            offset: int = await insist(
                lambda: scene.client.append(stream, batch(body), timeout=10.0)
            )
            return offset

        sent = {number: asyncio.ensure_future(send(number)) for number in range(64)}
        await scene.sleep(0.003 + 0.002 * seed)
        await scene.cluster.stop_node(primary)
        offsets = await asyncio.gather(*sent.values())
        assert len(set(offsets)) == 64, "none lost, none acknowledged twice"
        found = await insist(lambda: scene.read_all(stream))
        for sequence, offset in zip(sent, offsets, strict=True):
            assert found[offset] == b"window %d" % sequence

    play(script, seed=seed)


def test_f24_a_fetch_of_many_streams_is_told_apart() -> None:
    """One request, several streams, each with its own result; frames: tests/unit/wire_sbp."""

    async def script(scene: Scene) -> None:
        streams = [await scene.create(replicas=1) for _ in range(3)]
        for stream in streams:
            await scene.append(stream, 2)
        host = scene.primary(streams[0])
        infos = tuple(
            m.FetchInfo(stream_id=s, request_index=i, fetch_offset=0, batch_max_bytes=1 << 20)
            for i, s in enumerate(streams)
        )
        reply = await scene.call(host, Code.FETCH, m.FetchRequest(0, 1, infos))
        assert isinstance(reply, m.FetchResponse)
        assert {r.request_index: r.stream_id for r in reply.fetch_responses} == dict(
            enumerate(streams)
        )

    play(script)
