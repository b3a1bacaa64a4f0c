"""Ranges filled from other replicas, whose answers are not believed unseen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.replication.copying import Copier, Peers
from headrace.errors import (
    DiskFullError,
    HeadraceError,
    RangeNotFoundError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_routes import Payload, Reply
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import Connect
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header
from tests.log_cluster import batch
from tests.unit.datanode.fake_replica import simulate

KEY = RangeKey(1, 0)


def whole(*, base: int, body: bytes = b"x") -> bytes:
    return b"".join(batch(body, base_offset=base))


class FakeReplica:
    """Answers FETCH with what `answer` gives for an offset."""

    def __init__(self, answer: Callable[[int], bytes | HeadraceError | m.Message]) -> None:
        self.answer = answer
        self.asked: list[int] = []

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        assert isinstance(message, m.FetchRequest)
        (info,) = message.fetch_requests
        self.asked.append(info.fetch_offset)
        found = self.answer(info.fetch_offset)
        if isinstance(found, m.Message):
            return Reply(found)
        error = found if isinstance(found, HeadraceError) else None
        data = found if isinstance(found, bytes) else b""
        result = m.FetchResult(
            stream_id=1, batch_length=len(data), status=status_of(error) if error else m.OK
        )
        response = m.FetchResponse(fetch_responses=(result,), status=m.OK)
        return Reply(response, [data] if data else [])

    async def close(self) -> None:
        pass


class Replicas:
    def __init__(self, runtime: Runtime, *replicas: FakeReplica) -> None:
        self.replicas = {f"node:{n}": replica for n, replica in enumerate(replicas)}
        self.searches = 0
        self.peers = Peers(runtime.clock, self._connect_to, self._find)

    def _connect_to(self, address: str) -> Connect:
        async def connect() -> Channel:
            return self.replicas[address]

        return connect

    async def _find(self, key: RangeKey) -> Sequence[str]:
        self.searches += 1
        return list(self.replicas)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        whole(base=4),
        whole(base=3)[:-1],
        whole(base=3) + whole(base=5),
        whole(base=3)[:-1] + b"?",
        b"\x22" + whole(base=3)[1:],
        UnavailableError("down"),
        RangeNotFoundError("not here"),
        m.FetchResponse(status=status_of(UnavailableError("closing"))),
        m.HeartbeatResponse(),
    ],
)
def test_answers_that_are_not_taken(answer: bytes | HeadraceError | m.Message) -> None:
    async def body(runtime: Runtime) -> None:
        bad, good = FakeReplica(lambda _: answer), FakeReplica(lambda _: whole(base=3))
        replicas = Replicas(runtime, bad, good)
        found = await replicas.peers.fetch_any(KEY, 3, 1000)
        assert [header.base_offset for header, _ in found] == [3]
        assert good.asked == [3]
        alone = Replicas(runtime, bad)
        with pytest.raises(UnavailableError, match="no replica"):
            await alone.peers.fetch_any(KEY, 3, 1000)
        await replicas.peers.close()
        await alone.peers.close()

    simulate(body)


def test_sources_are_looked_for_now_and_then() -> None:
    async def body(runtime: Runtime) -> None:
        replica = FakeReplica(lambda offset: whole(base=offset))
        replicas = Replicas(runtime, replica)
        for offset in range(5):
            await replicas.peers.fetch_any(KEY, offset, 1000)
        assert replicas.searches == 1
        await runtime.clock.sleep(6)
        await replicas.peers.fetch_any(KEY, 0, 1000)
        assert replicas.searches == 2
        replica.answer = lambda offset: UnavailableError("gone")
        for expected in (2, 3):
            with pytest.raises(UnavailableError):
                await replicas.peers.fetch_any(KEY, 0, 1000)
            assert replicas.searches == expected, "after a failure others are looked for"
        await replicas.peers.close()

    simulate(body)


class IncompleteLog:
    """A range of which [next, end) is missing."""

    def __init__(self, end: int, *, start: int = 0) -> None:
        self.key = KEY
        self.durable_offset = start
        self.end = end
        self.failures: list[HeadraceError] = []
        self.copied: list[int] = []

    @property
    def missing(self) -> tuple[int, int] | None:
        return (self.durable_offset, self.end) if self.durable_offset < self.end else None

    def copy(
        self, header: bytearray, body: Sequence[Buffer], *, verified: bool
    ) -> asyncio.Future[None]:
        assert verified
        decoded = decode_header(header)
        if self.failures:
            raise self.failures.pop()
        self.copied.append(decoded.base_offset)
        self.durable_offset = decoded.next_offset
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    @property
    def real(self) -> RangeLog:
        return cast(RangeLog, self)


class Copying:
    def __init__(self, runtime: Runtime, answer: Callable[[int], Any]) -> None:
        self.replica = FakeReplica(answer)
        self.replicas = Replicas(runtime, self.replica)
        self.complete: list[RangeLog] = []
        self.copier = Copier(
            runtime.clock,
            DataNodeSettings(),
            self.replicas.peers,
            is_kept=lambda log: True,
            on_complete=self.complete.append,
        )

    async def close(self) -> None:
        await self.copier.close()
        await self.replicas.peers.close()


def test_a_range_is_filled_up_to_its_end() -> None:
    async def body(runtime: Runtime) -> None:
        copying = Copying(
            runtime, lambda offset: b"".join(whole(base=offset + n) for n in range(4))
        )
        log = IncompleteLog(10)
        copying.copier.want(log.real)
        copying.copier.want(log.real)
        await runtime.clock.sleep(1)
        assert log.copied == list(range(10)), "and nothing beyond it"
        assert copying.replica.asked == [0, 4, 8]
        assert copying.complete == [log.real]
        assert copying.copier.copied_bytes == 10 * len(whole(base=0))
        copying.copier.want(log.real)
        await runtime.clock.sleep(1)
        assert copying.complete == [log.real], "nothing is missing any more"
        await copying.close()

    simulate(body)


def test_what_fails_is_tried_again_with_growing_pauses() -> None:
    async def body(runtime: Runtime) -> None:
        copying = Copying(runtime, lambda offset: UnavailableError("down"))
        log = IncompleteLog(2)
        copying.copier.want(log.real)
        await runtime.clock.sleep(20)
        assert 5 < len(copying.replica.asked) < 15
        copying.replica.answer = lambda offset: whole(base=offset)
        log.failures = [DiskFullError("full"), StorageError("broken")]
        await runtime.clock.sleep(20)
        assert log.copied == [0, 1]
        await copying.close()

    simulate(body)


def test_a_batch_across_the_end_is_not_copied() -> None:
    async def body(runtime: Runtime) -> None:
        long = b"".join(batch(b"a", b"b", b"c"))
        copying = Copying(runtime, lambda offset: long)
        log = IncompleteLog(2)
        copying.copier.want(log.real)
        await runtime.clock.sleep(5)
        assert log.copied == []
        await copying.close()

    simulate(body)


def test_a_range_that_is_gone_is_given_up() -> None:
    async def body(runtime: Runtime) -> None:
        copying = Copying(runtime, lambda offset: UnavailableError("down"))
        copying.copier._is_kept = lambda log: len(copying.replica.asked) < 3
        copying.copier.want(IncompleteLog(2).real)
        await runtime.clock.sleep(60)
        assert len(copying.replica.asked) == 3
        assert copying.complete == []
        await copying.close()

    simulate(body)


def test_few_ranges_are_copied_at_a_time() -> None:
    async def body(runtime: Runtime) -> None:
        asked = 0
        gate = asyncio.Event()

        class Slow(FakeReplica):
            async def call(self, *args: Any, **kwargs: Any) -> Reply:
                nonlocal asked
                asked += 1
                await gate.wait()
                return await super().call(*args, **kwargs)

        copying = Copying(runtime, lambda offset: whole(base=offset))
        slow = Slow(lambda offset: whole(base=offset))
        copying.replicas.replicas["node:0"] = slow
        logs = [IncompleteLog(3) for _ in range(9)]
        for n, log in enumerate(logs):
            log.key = RangeKey(n, 0)
            copying.copier.want(log.real)
        await runtime.clock.sleep(1)
        assert asked == DataNodeSettings().copy_ranges_max
        gate.set()
        await runtime.clock.sleep(1)
        assert [log.copied for log in logs] == [[0, 1, 2]] * 9
        await copying.close()

    simulate(body)


def test_the_answer_must_be_an_answer() -> None:
    async def body(runtime: Runtime) -> None:
        replicas = Replicas(runtime, FakeReplica(lambda _: m.HeartbeatResponse()))
        with pytest.raises(RemoteProtocolError):
            await replicas.peers.fetch("node:0", KEY, 0, 1000)
        await replicas.peers.close()

    simulate(body)
