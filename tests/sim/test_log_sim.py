"""The real log services under power cuts, crashes and partitions, repeated by a seed."""

from __future__ import annotations

import asyncio

import pytest

from headrace.errors import FencedError, HeadraceError
from headrace.runtime.interfaces import Buffer
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.state_log import StateLog
from tests.log_cluster import batch, read_all
from tests.sim.log_world import World


def owned(pieces: list[Buffer]) -> tuple[bytearray, list[Buffer]]:
    header, *body = pieces
    assert isinstance(header, bytearray)
    return header, body


class History:
    """What a writer was promised."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.failed: list[HeadraceError] = []

    async def write(self, world: World, stream: OwnedStream, count: int, pause: float) -> None:
        clock = world.simulation.runtime("writer").clock
        answers: list[tuple[asyncio.Future[int], bytes]] = []
        for index in range(count):
            body = b"record %d" % index * (1 + index % 7)
            offset = stream.next_offset
            answers.append((stream.append(*owned(batch(body, base_offset=offset))), body))
            if index % 8 == 0:
                await clock.sleep(pause)
        for answer, body in answers:
            offset = await answer
            assert offset not in self.acknowledged
            self.acknowledged[offset] = body


def crashing_run(seed: int) -> tuple[World, History, list[tuple[int, bytes]]]:
    """A writer while the data node loses power again and again, and the manager crashes once."""
    world = World(seed)
    history = History()
    found: list[tuple[int, bytes]] = []

    async def writer() -> None:
        client = world.client()
        made = await client.create_stream(name="p/1/0/0")
        stream = await OwnedStream.open(client, made.stream_id, 1, clean=True)
        await history.write(world, stream, 400, pause=0.02)
        await stream.close()
        found.extend(await read_all(client, made.stream_id))
        await client.close()

    async def main() -> None:
        random = world.simulation.runtime("main").random
        await world.start_placement()
        await world.start_node()
        writing = world.simulation.start("writer", writer())
        for crash in range(4):
            await world.sleep(0.05 + random.uniform() * 0.5)
            if crash == 2:
                world.simulation.crash("pm")
                await world.sleep(random.uniform())
                await world.start_placement()
            world.simulation.crash("dn")
            await world.sleep(random.uniform())
            await world.start_node()
        await writing

    world.simulation.run(main())
    return world, history, found


@pytest.mark.parametrize("seed", range(8))
def test_acknowledged_records_survive_power_cuts(seed: int) -> None:
    world, history, found = crashing_run(seed)
    assert len(history.acknowledged) == 400
    assert found == sorted(history.acknowledged.items()), "each once, where it was promised, whole"
    assert sum(" crash" in line for line in world.simulation.trace) == 5


def test_a_seed_repeats_the_run() -> None:
    first, _, _ = crashing_run(3)
    second, _, _ = crashing_run(3)
    assert first.simulation.digest() == second.simulation.digest()
    other, _, _ = crashing_run(4)
    assert other.simulation.digest() != first.simulation.digest()


@pytest.mark.parametrize("seed", range(6))
def test_a_partitioned_writer_is_fenced(seed: int) -> None:
    """The old writer is cut off while it writes; a new one takes over; the old one comes back."""
    world = World(seed)
    promised: dict[int, bytes] = {}
    found: list[tuple[int, bytes]] = []

    async def old_writer() -> None:
        client = world.client("old")
        made = await client.create_stream(name="p/1/0/0")
        stream = await OwnedStream.open(client, made.stream_id, 1, clean=True)

        async def write_forever() -> None:
            while True:
                body = b"old %d" % stream.next_offset
                offset = await stream.append(*owned(batch(body, base_offset=stream.next_offset)))
                promised[offset] = body

        with pytest.raises(FencedError):
            await write_forever()
        with pytest.raises(FencedError):
            stream.append(*owned(batch(b"x", base_offset=stream.next_offset)))
        await stream.close()
        await client.close()

    async def new_writer() -> None:
        client = world.client("new")
        made = await client.create_stream(name="p/1/0/0")
        stream = await OwnedStream.open(client, made.stream_id, 2, clean=seed % 2 == 0)
        before = dict(promised)
        assert stream.next_offset >= len(before), "nothing acknowledged is lost by the take-over"
        for _ in range(20):
            body = b"new %d" % stream.next_offset
            offset = await stream.append(*owned(batch(body, base_offset=stream.next_offset)))
            promised[offset] = body
        world.simulation.heal()
        await world.sleep(3)
        found.extend(await read_all(client, made.stream_id))
        await stream.close()
        await client.close()

    async def main() -> None:
        await world.start_placement()
        await world.start_node()
        old = world.simulation.start("old", old_writer())
        await world.sleep(0.5)
        world.simulation.partition("old", "dn")
        if seed % 3 == 0:
            world.simulation.partition("old", "pm")
        new = world.simulation.start("new", new_writer())
        await new
        await old

    world.simulation.run(main())
    assert [offset for offset, _ in found] == list(range(len(found)))
    bodies = dict(found)
    assert all(bodies[offset] == body for offset, body in promised.items())
    first_new = min(offset for offset, body in found if body.startswith(b"new"))
    assert all(body.startswith(b"new") for offset, body in found if offset > first_new)


def test_a_partition_between_manager_and_node_only_delays() -> None:
    world = World(1)
    history = History()

    async def writer() -> None:
        client = world.client()
        made = await client.create_stream(name="p/1/0/0")
        stream = await OwnedStream.open(client, made.stream_id, 1, clean=True)
        await history.write(world, stream, 100, pause=0.05)
        assert len(await read_all(client, made.stream_id)) == 100
        await stream.close()
        await client.close()

    async def main() -> None:
        await world.start_placement()
        await world.start_node()
        writing = world.simulation.start("writer", writer())
        await world.sleep(0.2)
        world.simulation.partition("pm", "dn")
        await world.sleep(20)
        world.simulation.heal()
        await writing
        assert world.placement is not None
        await world.sleep(5)
        assert world.placement.state.nodes.alive() == [0]

    world.simulation.run(main())
    assert len(history.acknowledged) == 100


class Counts:
    """State rebuilt from a log: how often each kind was applied."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def apply(self, version: int, kind: str, body: object) -> None:
        assert isinstance(body, int)
        self.counts[kind] = self.counts.get(kind, 0) + body

    def snapshot(self) -> tuple[int, list[bytes]]:
        return 1, [f"{kind}={count}".encode() for kind, count in sorted(self.counts.items())]

    def restore(self, version: int, chunks: object) -> None:
        assert isinstance(chunks, list)
        for chunk in chunks:
            kind, count = chunk.decode().split("=")
            self.counts[kind] = int(count)


@pytest.mark.parametrize("seed", range(8))
def test_state_log_after_crashes_of_its_writer(seed: int) -> None:
    """Whatever was answered is in the state of the next incarnation, exactly once."""
    world = World(seed)
    answered: dict[str, int] = {}
    sent: dict[str, int] = {}

    async def incarnation(epoch: int) -> None:
        client = world.client()
        state = Counts()
        log = await StateLog.open(
            client,
            name="s/test",
            epoch=epoch,
            clean=False,
            apply=state.apply,
            snapshot=state.snapshot,
            restore=state.restore,
            runtime=client.runtime,
        )
        for kind in sent:
            assert answered.get(kind, 0) <= state.counts.get(kind, 0) <= sent[kind]
        # What was in flight at the crash is decided now.
        answered.update(state.counts)
        sent.update(state.counts)

        async def bump(kind: str) -> None:
            sent[kind] = sent.get(kind, 0) + 1
            await log.append(kind, 1)
            answered[kind] = answered.get(kind, 0) + 1

        async def snapshots() -> None:
            while True:
                await client.runtime.clock.sleep(0.02)
                await log.write_snapshot()

        snapshotting = asyncio.create_task(snapshots())
        try:
            for _ in range(50):
                await asyncio.gather(*(bump(f"kind {i}") for i in range(12)))
        finally:
            snapshotting.cancel()
            await asyncio.gather(snapshotting, return_exceptions=True)
        await log.close()
        await client.close()

    async def main() -> None:
        random = world.simulation.runtime("main").random
        await world.start_placement()
        await world.start_node()
        for epoch in range(1, 6):
            running = world.simulation.start("writer", incarnation(epoch))
            await world.sleep(0.02 + random.uniform() * 0.3)
            if epoch < 5:
                world.simulation.crash("writer")
            if epoch == 3:
                world.simulation.crash("dn")
                await world.start_node()
            result = (await asyncio.gather(running, return_exceptions=True))[0]
            if isinstance(result, Exception):
                raise result

    world.simulation.run(main())
    assert answered == sent
    assert answered["kind 0"] >= 50
