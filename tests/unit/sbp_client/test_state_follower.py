"""A follower of a state log: what it applies, what it starts over for, what ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from headrace.errors import (
    CorruptionError,
    DeadlineError,
    FormatError,
    HeadraceError,
    UnavailableError,
)
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_follower import POLL_WAIT_MS, StateFollower
from headrace.sbp_client.state_log import StateLog
from headrace.sbp_client.state_replay import OffsetSpan, accept_losses
from headrace.wire.sbp.messages import FetchRequest, ListRangesRequest
from tests.log_cluster import Cluster
from tests.simulator.disk import SimulatedDisk
from tests.simulator.runtime import Simulation
from tests.unit.sbp_client.test_state_replay import Numbers, damage, open_log

HOST = "host"


class Seen(Numbers):
    """The state of a follower, and how it came about."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.restored: list[int] = []

    def apply(self, version: int, kind: str, body: Any) -> None:
        if kind == "bug":
            raise ZeroDivisionError
        self.kinds.append(f"{kind} {body[0]}")
        super().apply(version, kind, body)

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        super().restore(version, chunks)
        self.restored.append(len(self.held))


class Stage:
    """A writer and followers, each with a client of its own."""

    def __init__(self, simulation: Simulation, *, nodes: int = 1) -> None:
        self.simulation = simulation
        self.disk: SimulatedDisk = simulation.disk(HOST)
        self.nodes = nodes
        self.cluster = Cluster(
            simulation.runtime(HOST), "/data", tcp=False, sqlite=False, nodes=nodes
        )
        self.failures: list[HeadraceError] = []
        self.written = Numbers()
        self._epoch = 0

    async def write(self, *, clean: bool = False) -> StateLog:
        """The next writer, whose state `written` is."""
        self._epoch += 1
        self.written = Numbers()
        return await open_log(self.cluster.client(), self.written, self._epoch, clean=clean)

    async def follow(self, seen: Seen, **more: Any) -> StateFollower:
        client = more.pop("client", None) or self.cluster.client()
        return await StateFollower.open(
            client, name="s/test", apply=seen.apply, restore=seen.restore,
            runtime=client.runtime, on_failed=self.failures.append, **more,
        )  # fmt: skip

    async def accept(self, lost: list[tuple[int, int]]) -> None:
        self._epoch += 1
        spans = [OffsetSpan(*each) for each in lost]
        await accept_losses(self.cluster.client(), "s/test", self._epoch, spans)

    async def damage(self, needle: bytes, *which: int) -> None:
        await self.cluster.kill_node()
        damage(self.disk, needle, which)
        await self.cluster.start_node()

    def now(self) -> float:
        return self.simulation.time()

    async def sleep(self, seconds: float) -> None:
        await self.cluster.runtime.clock.sleep(seconds)


class Asleep:
    """A client whose fetches wait for as long as its process sleeps."""

    def __init__(self, client: SbpClient) -> None:
        self.client = client
        self.awake = asyncio.Event()
        self.awake.set()
        fetch = client.fetch

        async def wait_and_fetch(*args: Any, **more: Any) -> Any:
            await self.awake.wait()
            fetched = await fetch(*args, **more)
            await self.awake.wait()
            return fetched

        client.fetch = wait_and_fetch  # type: ignore[method-assign]


def on_stage(test: Callable[[Stage], Awaitable[None]], *, nodes: int = 1) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        stage = Stage(simulation, nodes=nodes)
        await stage.cluster.start()
        await test(stage)
        await stage.cluster.close()

    simulation.run(main())


def test_a_follower_has_what_was_there_and_gets_what_comes() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        await log.append("set", ["before", 1])
        seen = Seen()
        follower = await stage.follow(seen)
        assert seen.held == {"before": 1}
        assert follower.applied_offset == log.applied_offset
        for number in range(20):
            await log.append("set", ["n", number])
            await follower.wait_applied(log.applied_offset, 1.0)
            assert seen.held["n"] == number
        await log.append_many([("set", ["a", 1]), ("add", ["a", 2])])
        await asyncio.gather(*(log.append("add", ["a", 1]) for _ in range(50)))
        await follower.wait_applied(log.applied_offset, 1.0)
        assert seen.held == stage.written.held
        assert seen.kinds == ["set before", *["set n"] * 20, "set a", *["add a"] * 51], "each once"
        assert not seen.restored
        await log.close()
        await follower.close()

    on_stage(body)


def test_an_event_is_applied_a_moment_after_it_is_committed() -> None:
    """The long poll ends with the commit, not with its time."""

    async def body(stage: Stage) -> None:
        log = await stage.write()
        follower = await stage.follow(Seen())
        for number in range(10):
            await stage.sleep(0.07)
            await log.append("set", ["n", number])
            started = stage.now()
            await follower.wait_applied(log.applied_offset, 1.0)
            assert stage.now() - started < 0.005
        await log.close()
        await follower.close()

    on_stage(body)


def test_a_log_that_is_not_there_yet_is_waited_for() -> None:
    async def body(stage: Stage) -> None:
        with pytest.raises((UnavailableError, DeadlineError)):
            await stage.follow(Seen(), timeout=2.0)
        seen = Seen()
        opening = asyncio.ensure_future(stage.follow(seen))
        await stage.sleep(3.0)
        assert not opening.done()
        log = await stage.write()
        follower = await opening
        await log.append("set", ["a", 1])
        await follower.wait_applied(log.applied_offset, 1.0)
        assert seen.held == {"a": 1}
        await log.close()
        await follower.close()

    on_stage(body)


@pytest.mark.parametrize("clean", [False, True])
def test_writers_that_follow_each_other_are_followed(clean: bool) -> None:
    """Each seals the range of the one before, unless that one stopped cleanly."""

    async def body(stage: Stage) -> None:
        seen = Seen()
        opening = asyncio.ensure_future(stage.follow(seen))
        for epoch in range(5):
            log = await stage.write(clean=clean)
            follower = await opening
            for number in range(3):
                await log.append("set", [f"{epoch}-{number}", number])
            await log.close()
        await follower.wait_applied(log.applied_offset, 5.0)
        assert seen.held == stage.written.held
        assert len(seen.kinds) == 15
        await follower.close()

    on_stage(body)


def test_a_follower_fences_nobody_and_writes_nothing() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        await log.append("set", ["a", 1])
        for _ in range(3):
            await (await stage.follow(Seen())).close()
        before = await stage.cluster.client().bounds(log.stream.stream_id)
        await log.append("set", ["b", 1])
        assert log.failure is None
        assert before[1] == log.applied_offset - 2, "the event and its copy alone came after"
        await log.close()

    on_stage(body)


def test_snapshots_are_passed_over_while_nothing_was_missed() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        seen = Seen()
        follower = await stage.follow(seen)
        for number in range(6):
            await log.append("set", [str(number), number])
            await log.write_snapshot()
            await follower.wait_applied(log.applied_offset, 1.0)
        assert seen.held == stage.written.held
        assert not seen.restored
        late = Seen()
        other = await stage.follow(late)
        assert late.held == seen.held
        assert late.restored == [6]
        for each in (follower, other, log):
            await each.close()

    on_stage(body)


def test_who_slept_through_a_trim_starts_over_from_the_snapshot() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        seen, asleep = Seen(), Asleep(stage.cluster.client())
        await log.append("set", ["a", 1])
        follower = await stage.follow(seen, client=asleep.client)
        asleep.awake.clear()
        await stage.sleep(1.0)
        for number in range(5):
            await log.append("add", ["a", 1])
            await log.append("set", [f"b{number}", 1])
            await log.write_snapshot()
        await log.append("set", ["last", 1])
        (start, _) = await stage.cluster.client().bounds(log.stream.stream_id)
        assert start > follower.applied_offset
        with pytest.raises(DeadlineError):
            await follower.wait_applied(log.applied_offset, 1.0)
        asleep.awake.set()
        await follower.wait_applied(log.applied_offset, 2.0)
        assert seen.held == stage.written.held
        assert seen.restored == [6], "after events were applied"
        await log.append("add", ["a", 1])
        await follower.wait_applied(log.applied_offset, 1.0)
        assert seen.held["a"] == 7
        await log.close()
        await follower.close()

    on_stage(body)


@pytest.mark.parametrize("which", [0, 1])
def test_damage_of_one_is_read_from_its_copy(which: int) -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        await log.append("set", ["alpha", 0])
        seen, asleep = Seen(), Asleep(stage.cluster.client())
        follower = await stage.follow(seen, client=asleep.client)
        asleep.awake.clear()
        await stage.sleep(1.0)
        for number, name in enumerate(("beta", "gamma", "delta")):
            await log.append("set", [name, number])
        end = log.applied_offset
        await log.close()
        for needle in (b"beta", b"delta"):
            await stage.damage(needle, which)
        asleep.awake.set()
        await follower.wait_applied(end, 10.0)
        assert seen.held == stage.written.held
        assert len(seen.kinds) == 4
        await follower.close()

    on_stage(body)


def test_damage_without_a_copy_ends_the_follower() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        await log.append("set", ["alpha", 0])
        seen, asleep = Seen(), Asleep(stage.cluster.client())
        follower = await stage.follow(seen, client=asleep.client)
        asleep.awake.clear()
        await stage.sleep(1.0)
        for number, name in enumerate(("beta", "gamma")):
            await log.append("set", [name, number])
        end = log.applied_offset
        await log.close()
        await stage.damage(b"set\x92\xa4beta", 0, 1)
        asleep.awake.set()
        with pytest.raises(CorruptionError):
            await follower.wait_applied(end, 10.0)
        assert seen.held == {"alpha": 0}, "nothing is left out unasked"
        assert stage.failures == [follower.failure]
        assert isinstance(follower.failure, CorruptionError)
        assert follower.failure.data["log"] == "s/test"
        await follower.close()
        with pytest.raises(CorruptionError):
            await stage.follow(Seen())

    on_stage(body)


def test_an_accepted_loss_is_forgotten_by_who_knew_it() -> None:
    """The next writer goes on without what was lost, so a follower does too."""

    async def body(stage: Stage) -> None:
        log = await stage.write()
        seen = Seen()
        follower = await stage.follow(seen)
        for number, name in enumerate(("alpha", "beta", "gamma")):
            await log.append("set", [name, number])
        await log.append("add", ["beta", 10])
        await follower.wait_applied(log.applied_offset, 1.0)
        await log.close()
        await stage.damage(b"set\x92\xa4beta", 0, 1)
        await stage.accept([(2, 4)])
        log = await stage.write()
        await log.append("add", ["gamma", 5])
        await follower.wait_applied(log.applied_offset, 10.0)
        assert seen.held == stage.written.held == {"alpha": 0, "gamma": 7}
        assert seen.restored == [0], "there is no snapshot: from nothing"
        assert follower.failure is None
        await log.close()
        await follower.close()

    on_stage(body)


@pytest.mark.parametrize(
    ("kind", "version", "expected"), [("set", 2, FormatError), ("bug", 1, CorruptionError)]
)
def test_events_it_cannot_apply_end_the_follower(
    kind: str, version: int, expected: type[HeadraceError]
) -> None:
    async def body(stage: Stage) -> None:
        client = stage.cluster.client()
        log = await StateLog.open(
            client, name="s/test", epoch=1, clean=False, apply=lambda *_: None,
            snapshot=lambda: (1, []), restore=lambda *_: None, runtime=client.runtime,
            version_max=2,
        )  # fmt: skip
        seen = Seen()
        follower = await stage.follow(seen)
        await log.append("set", ["a", 1])
        waiting = asyncio.ensure_future(follower.wait_applied(log.applied_offset + 2, 5.0))
        await log.append(kind, ["b", 1], version=version)
        with pytest.raises(expected):
            await waiting
        assert stage.failures == [follower.failure]
        assert isinstance(follower.failure, expected)
        with pytest.raises(expected):
            await follower.wait_applied(log.applied_offset, 5.0)
        await follower.wait_applied(follower.applied_offset, 0.0)
        assert seen.held == {"a": 1}
        await log.append("set", ["c", 1])
        await stage.sleep(1.0)
        assert seen.held == {"a": 1}
        await follower.close()
        await log.close()

    on_stage(body)


def test_how_old_the_state_may_be_is_known() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        await log.append("set", ["a", 1])
        seen = Seen()
        follower = await stage.follow(seen)
        for _ in range(50):  # idle
            await stage.sleep(0.11)
            assert follower.lag_seconds < 2.2 * POLL_WAIT_MS / 1000
        for number in range(200):  # every long poll ends with an event
            await log.append("set", ["n", number])
            await stage.sleep(0.02)
            assert follower.lag_seconds < 4 * POLL_WAIT_MS / 1000
        await stage.cluster.kill_node()
        died = stage.now()
        await stage.sleep(20.0)
        assert follower.current_at <= died
        assert seen.held == stage.written.held, "old, and still there"
        assert follower.failure is None
        with pytest.raises(DeadlineError):
            await follower.wait_applied(log.applied_offset + 1, 1.0)
        await stage.cluster.start_node()
        again = await stage.write()
        await again.append("set", ["n", -1])
        await follower.wait_applied(again.applied_offset, 5.0)
        await stage.sleep(0.01)
        assert follower.lag_seconds < 0.02, "who was behind looks for the end at once"
        await follower.close()
        await again.close()
        await log.close()

    on_stage(body)


def test_placement_away_does_not_stop_the_following() -> None:
    async def body(stage: Stage) -> None:
        client = stage.cluster.client()
        log = await StateLog.open(
            client, name="s/test", epoch=1, clean=False, apply=lambda *_: None,
            snapshot=lambda: (1, []), restore=lambda *_: None, runtime=client.runtime,
            replica_nums=3,
        )  # fmt: skip
        seen = Seen()
        follower = await stage.follow(seen)
        await stage.sleep(1.0)
        assert follower.lag_seconds < 2.2 * POLL_WAIT_MS / 1000
        await stage.cluster.stop_placement()
        left = stage.now()
        for number in range(30):
            await stage.sleep(0.7)
            await log.append("set", ["n", number])
            await follower.wait_applied(log.applied_offset, 0.01)
        assert follower.current_at <= left, "the log might go on elsewhere"
        await stage.cluster.start_placement()
        await stage.sleep(8.0)
        assert follower.lag_seconds < 2.2 * POLL_WAIT_MS / 1000
        await log.close()
        await follower.close()

    on_stage(body, nodes=3)


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_idle_follower_costs_one_long_poll(replicas: int) -> None:
    async def body(stage: Stage) -> None:
        writer = stage.cluster.client()
        log = await StateLog.open(
            writer, name="s/test", epoch=1, clean=False, apply=lambda *_: None,
            snapshot=lambda: (1, []), restore=lambda *_: None, runtime=writer.runtime,
            replica_nums=replicas,
        )  # fmt: skip
        client = stage.cluster.client()
        follower = await stage.follow(Seen(), client=client)
        asked: list[object] = []
        under_way = most = 0
        links: list[Any] = [client.placement, *client.nodes._peers.values()]
        for link in links:
            call = link.call

            async def count(
                code: Any, message: Any, *rest: Any, call: Any = call, **more: Any
            ) -> Any:
                nonlocal under_way, most
                asked.append(message)
                under_way += isinstance(message, FetchRequest)
                most = max(most, under_way)
                try:
                    return await call(code, message, *rest, **more)
                finally:
                    under_way -= isinstance(message, FetchRequest)

            link.call = count
        await stage.sleep(10.0)
        fetches = sum(isinstance(each, FetchRequest) for each in asked)
        lists = sum(isinstance(each, ListRangesRequest) for each in asked)
        assert 30 < fetches <= 40
        assert most == 1
        assert lists == 0 if replicas == 1 else lists <= fetches
        await log.close()
        await follower.close()

    on_stage(body, nodes=replicas)


def test_a_closed_follower_keeps_nobody_waiting() -> None:
    async def body(stage: Stage) -> None:
        log = await stage.write()
        follower = await stage.follow(Seen())
        waiting = asyncio.ensure_future(follower.wait_applied(1 << 20, 60.0))
        await asyncio.sleep(0)
        await follower.close()
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await follower.wait_applied(1 << 20, 60.0)
        await follower.wait_applied(0, 0.0)
        assert not stage.failures
        await log.close()

    on_stage(body)
