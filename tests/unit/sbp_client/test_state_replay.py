"""Damage to a control log that has one replica: what its copies and its operator make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from headrace.errors import CorruptionError
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_log import StateLog
from headrace.sbp_client.state_replay import LOST, SNAPSHOT_FORMAT, OffsetSpan, examine
from tests.log_cluster import Cluster
from tests.simulator.disk import SimulatedDisk
from tests.simulator.runtime import Simulation

HOST = "host"
NAMES = ("alpha", "beta", "gamma", "delta")


class Numbers:
    """Names with numbers. Adding to one that is not there does not fit."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    def apply(self, version: int, kind: str, body: Any) -> None:
        if kind == "set":
            self.held[body[0]] = body[1]
        else:
            self.held[body[0]] += body[1]

    def snapshot(self) -> tuple[int, Iterable[bytes]]:
        return 1, [msgspec.msgpack.encode(item) for item in self.held.items()]

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        self.held = dict(msgspec.msgpack.decode(chunk, type=tuple[str, int]) for chunk in chunks)


async def open_log(
    client: SbpClient, numbers: Numbers, epoch: int, *, clean: bool = True
) -> StateLog:
    return await StateLog.open(
        client, name="s/test", epoch=epoch, clean=clean, apply=numbers.apply,
        snapshot=numbers.snapshot, restore=numbers.restore, runtime=client.runtime,
    )  # fmt: skip


def damage(disk: SimulatedDisk, needle: bytes, which: Sequence[int]) -> None:
    """Flip a bit in some of the places where the bytes stand in a log, counted from the first."""
    places: list[tuple[str, int]] = []
    streams = "/data/node/log/streams"
    for stream in disk.list(streams):
        for range_ in disk.list(f"{streams}/{stream}"):
            folder = f"{streams}/{stream}/{range_}"
            for name in sorted(disk.list(folder)):
                if name.endswith(".log"):
                    data = bytes(disk.read(f"{folder}/{name}"))
                    at = data.find(needle)
                    while at >= 0:
                        places.append((f"{folder}/{name}", at))
                        at = data.find(needle, at + 1)
    assert len(places) > max(which), f"{needle!r} stands in {len(places)} places"
    for index in which:
        disk.flip_bit(*places[index])


class Stage:
    """A log that is written, damaged while its data node is down, and opened again."""

    def __init__(self, simulation: Simulation) -> None:
        self.disk = simulation.disk(HOST)
        self.cluster = Cluster(simulation.runtime(HOST), "/data", tcp=False, sqlite=False)
        self._epoch = 0

    async def open(self) -> tuple[StateLog, Numbers]:
        self._epoch += 1
        numbers = Numbers()
        return await open_log(self.cluster.client(), numbers, self._epoch, clean=False), numbers

    async def damage(self, needle: bytes, *which: int) -> None:
        await self.cluster.kill_node()
        damage(self.disk, needle, which)
        await self.cluster.start_node()

    async def examine(self) -> list[OffsetSpan]:
        client = self.cluster.client()
        stream_id = (await client.create_stream(name="s/test")).stream_id
        _, end = await client.bounds(stream_id)
        return (await examine(client, stream_id, end, version_max=1)).missing


async def write_names(stage: Stage) -> Numbers:
    log, numbers = await stage.open()
    for value, name in enumerate(NAMES):
        await log.append("set", [name, value])
    await log.close()
    return numbers


def on_stage(test: Any) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        stage = Stage(simulation)
        await stage.cluster.start()
        await test(stage)
        await stage.cluster.close()

    simulation.run(main())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", [0, 1])
def test_one_flipped_bit_costs_nothing(name: str, which: int) -> None:
    """In the event or in its copy, at the beginning, in the middle, at the end of the log."""

    async def body(stage: Stage) -> None:
        written = await write_names(stage)
        await stage.damage(name.encode(), which)
        log, found = await stage.open()
        assert found.held == written.held
        assert log.snapshot_due(1 << 30), "a snapshot leaves the damage behind"
        await log.write_snapshot()
        assert not log.snapshot_due(1 << 30)
        await log.append("set", ["later", 9])
        await log.close()
        log, found = await stage.open()
        assert found.held == {**written.held, "later": 9}
        assert not log.snapshot_due(1 << 30)
        await log.close()

    on_stage(body)


def test_batches_of_several_events_and_neighbours_are_mended_too() -> None:
    async def body(stage: Stage) -> None:
        log, written = await stage.open()
        await log.append_many([("set", [f"first-{at}", at]) for at in range(3)])
        await log.append_many([("set", [f"second-{at}", at]) for at in range(4)])
        await log.append("set", ["third", 3])
        await log.close()
        await stage.damage(b"first-1", 1)  # the copy of one and the next one itself: one hole
        await stage.damage(b"second-2", 0)
        log, found = await stage.open()
        assert found.held == written.held
        await log.close()

    on_stage(body)


def test_a_damaged_snapshot_is_read_from_its_copies() -> None:
    async def body(stage: Stage) -> None:
        log, written = await stage.open()
        for value, name in enumerate(NAMES):
            await log.append("set", [name, value])
        await log.write_snapshot()
        await log.append("add", ["beta", 10])
        await log.close()
        chunk = msgspec.msgpack.encode(("beta", 1))
        # An event and its copy hold the bytes without the frame of a pair: chunks alone match.
        await stage.damage(b"\xc4" + bytes([len(chunk)]) + chunk, 0)
        log, found = await stage.open()
        assert found.held == written.held
        await log.close()

    on_stage(body)


def test_a_snapshot_lost_with_its_copies_is_made_up_for_by_what_came_before() -> None:
    async def body(stage: Stage) -> None:
        log, written = await stage.open()
        await log.append("set", ["alpha", 1])
        await log.write_snapshot()
        await log.append("set", ["beta", 2])
        await log.write_snapshot()
        await log.append("add", ["alpha", 10])
        await log.close()
        chunk = msgspec.msgpack.encode(("beta", 2))
        await stage.damage(b"\xc4" + bytes([len(chunk)]) + chunk, 0, 1)
        lost = await stage.examine()
        assert lost, "nobody can tell what stood there"
        stage._epoch += 1
        await accept(stage.cluster.client(), stage._epoch, lost)
        log, found = await stage.open()
        assert found.held == written.held
        await log.close()

    on_stage(body)


def test_what_both_copies_lost_stops_the_start_until_it_is_accepted() -> None:
    async def body(stage: Stage) -> None:
        log, _ = await stage.open()
        for value, name in enumerate(NAMES):
            await log.append("set", [name, value])
        await log.append("add", ["beta", 10])  # does not fit once `beta` is lost
        await log.append("add", ["gamma", 20])
        await log.close()
        await stage.damage(b"set\x92\xa4beta", 0, 1)
        with pytest.raises(CorruptionError, match="salvage") as caught:
            await stage.open()
        assert caught.value.data["log"] == "s/test"
        lost = await stage.examine()
        assert lost == [OffsetSpan(2, 4)], "the event and its copy"
        client = stage.cluster.client()
        stage._epoch += 1
        await accept(client, stage._epoch, lost)
        assert await stage.examine() == []
        log, found = await stage.open()
        assert found.held == {"alpha": 0, "gamma": 22, "delta": 3}
        await log.write_snapshot()
        await log.append("set", ["beta", 5])
        await log.close()
        log, found = await stage.open()
        assert found.held == {"alpha": 0, "gamma": 22, "delta": 3, "beta": 5}
        await log.close()

    on_stage(body)


async def accept(client: SbpClient, epoch: int, lost: list[OffsetSpan]) -> None:
    from headrace.sbp_client.state_replay import accept_losses

    await accept_losses(client, "s/test", epoch, lost)


def test_replicated_logs_keep_no_copies() -> None:
    """The other replicas are the copies."""
    simulation = Simulation(1)

    async def main() -> None:
        cluster = Cluster(simulation.runtime(HOST), "/data", tcp=False, sqlite=False, nodes=3)
        await cluster.start()
        numbers = Numbers()
        client = cluster.client()
        log = await StateLog.open(
            client, name="s/test", epoch=1, clean=False, apply=numbers.apply,
            snapshot=numbers.snapshot, restore=numbers.restore, runtime=client.runtime,
            replica_nums=3,
        )  # fmt: skip
        await asyncio.gather(*(log.append("set", [name, 1]) for name in NAMES))
        assert log.applied_offset == len(NAMES)
        await log.close()
        await cluster.close()

    simulation.run(main())


def test_the_format_of_accepted_losses_is_checked() -> None:
    async def body(stage: Stage) -> None:
        log, _ = await stage.open()
        record = msgspec.msgpack.encode((SNAPSHOT_FORMAT, LOST, "everything"))
        await log._enqueue([record])
        await log.close()
        with pytest.raises(CorruptionError):
            await stage.open()

    on_stage(body)
