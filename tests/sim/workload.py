"""Clients of a simulated cluster: writers of every kind, readers, and those who trim and seal.

Every batch has a body that nobody else ever sends, so that whatever is found in the log can be
traced to the request that put it there. A client meets faults as a program would: it tries again,
and what it was promised it remembers. What it sees and may not be seen goes to the history as a
complaint; the checker does the rest.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    OffsetOutOfRangeError,
    SealedError,
    StateError,
    StorageError,
    UnavailableError,
)
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.sbp_client.producer import StreamProducer
from headrace.sbp_client.state_log import StateLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import PRODUCER
from tests.log_cluster import batch
from tests.sim.cluster import Cluster
from tests.sim.ending import insist
from tests.simulator.runtime import SimulatedRandom

FETCH_BYTES = 4096
LONG = 1000.0
"""Seconds: for what is tried until it succeeds; `SETTLE_SECONDS` says when that is too late."""
SETTLE_SECONDS = 90.0
"""After the last fault every writer must have come through within this time."""


@dataclass(slots=True)
class Target:
    """A stream that the workload uses."""

    stream_id: int
    replicas: int
    owned: bool = False
    acknowledged: int = 0
    """The offset after the last record that some writer was promised."""
    trimmed: int = 0
    """The highest offset a trim was asked for: below it reads may fail."""

    def promise(self, end: int) -> None:
        self.acknowledged = max(self.acknowledged, end)


@dataclass(slots=True)
class Workload:
    cluster: Cluster
    random: SimulatedRandom
    replicas: int = 3
    pace: float = 0.9
    """Seconds between two appends of one writer, on average."""
    targets: list[Target] = field(default_factory=list)
    stopping: bool = False
    answered: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """By name of a StateLog: the events whose append was answered."""
    _events: int = 0
    _bodies: int = 0
    _hosts: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    # Life

    def start(self, kind: str, work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Run a client on a host of its own."""
        self._names[kind] += 1
        host = f"{kind}{self._names[kind]}"
        self._hosts[host] = self.cluster.simulation.start(host, work(host))

    async def finish(self) -> None:
        """No more faults: everybody comes to an end, or that is a complaint."""
        self.stopping = True
        if not self._hosts:
            return
        _, late = await asyncio.wait(self._hosts.values(), timeout=SETTLE_SECONDS)
        for host, task in self._hosts.items():
            if task in late:
                self.cluster.history.complain(f"liveness: {host} is not done")
                task.cancel()
            elif not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def create(self, client: SbpClient, *, name: str = "", replicas: int = 0) -> Target:
        """A stream; tried again until the cluster has enough nodes for it."""
        made = await insist(
            lambda: client.create_stream(name=name, replica_nums=replicas or self.replicas), LONG
        )
        target = Target(made.stream_id, made.replica_nums, owned=bool(name))
        self.targets.append(target)
        return target

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds * (0.2 + 1.6 * self.random.uniform()))

    def body(self, host: str) -> bytes:
        self._bodies += 1
        return b"%s %d " % (host.encode(), self._bodies) + b"x" * self.random.below(120)

    # Writers

    async def append_plainly(self, host: str, target: Target) -> None:
        """At least once: an append whose outcome is unknown is forgotten, not repeated."""
        client = self.cluster.client(host)
        while not self.stopping:
            bodies = [self.body(host) for _ in range(1 + self.random.below(3))]
            with suppress(HeadraceError):
                offset = await client.append(target.stream_id, batch(*bodies))
                target.promise(offset + len(bodies))
            await self.pause(self.pace)
        await client.close()

    async def append_stubbornly(self, host: str, target: Target) -> None:
        """Again to the same primary whatever happens to it; only its refusal makes it seal."""
        client = self.cluster.client(host)
        while not self.stopping:
            try:
                ranges = await client.list_ranges(target.stream_id)
                if ranges[-1].end_offset >= 0:
                    raise SealedError
                await self._append_until_refused(client, target, ranges[-1])
            except SealedError:
                with suppress(HeadraceError):
                    await client.seal(target.stream_id, ranges[-1].range_index)
            except (StateError, StorageError):
                pass
            await self.pause(self.pace / 3)
        await client.close()

    async def _append_until_refused(
        self, client: SbpClient, target: Target, range_: m.Range
    ) -> None:
        for _ in range(20):
            if self.stopping:
                return
            body = self.body(client.client_id)
            try:
                offset = await client.append_to(
                    range_, batch(body), writer_epoch=-1, expected_offset=-1, timeout=0.7
                )
            except (UnavailableError, DeadlineError):
                await self.pause(0.1)
            else:
                target.promise(offset + 1)
                await self.pause(self.pace / 2)

    async def append_in_sequence(self, host: str, target: Target) -> None:
        """Exactly once: the same batch again and again until it is acknowledged."""
        client = self.cluster.client(host)
        producer_id = 1000 + self._bodies
        sequence = 0
        while not self.stopping:
            bodies = [self.body(host) for _ in range(1 + self.random.below(3))]

            async def attempt(bodies: list[bytes] = bodies, sequence: int = sequence) -> int:
                pieces = batch(
                    *bodies, attributes=PRODUCER, producer_id=producer_id, sequence=sequence
                )
                return await client.append(target.stream_id, pieces)

            try:
                offset = await insist(attempt, LONG)
            except InvalidArgumentError as error:
                self.cluster.history.complain(f"I18: a batch sent again is refused: {error}")
                break
            target.promise(offset + len(bodies))
            sequence += len(bodies)
            await self.pause(self.pace)
        await client.close()

    async def produce(self, host: str, target: Target) -> None:
        """Exactly once and in order, several batches under way, as `StreamProducer` promises."""
        client = self.cluster.client(host)
        producer = StreamProducer(client)
        answers: list[asyncio.Future[int]] = []
        while not self.stopping:
            for _ in range(1 + self.random.below(3)):
                records = [self.body(host) for _ in range(1 + self.random.below(3))]
                answer = await producer.send(target.stream_id, records)
                answer.add_done_callback(partial(self._on_produced, target, records))
                answers.append(answer)
            answers = [answer for answer in answers if not answer.done()]
            await self.pause(self.pace)
        try:
            await producer.flush()
        except HeadraceError as error:
            self.cluster.history.complain(f"liveness: a producer gave up: {error!r}")
        await producer.close()
        await client.close()

    def _on_produced(
        self, target: Target, records: list[bytes], answer: asyncio.Future[int]
    ) -> None:
        if not answer.cancelled() and answer.exception() is None:
            target.promise(answer.result() + len(records))
            self.cluster.history.check_held(target.stream_id, answer.result() + len(records))
            for offset, record in enumerate(records, answer.result()):
                self.cluster.history.promises.append((target.stream_id, offset, record))

    async def own(self, host: str, name: str, epochs: list[int]) -> None:
        """Rivals for one stream: each takes it over under a higher epoch, and writes until fenced.

        `epochs` is shared between the rivals: its last element is the highest taken.
        """
        client = self.cluster.client(host)
        target = await self.create(client, name=name)
        while not self.stopping:
            epochs.append(epochs[-1] + 1)
            epoch = epochs[-1]
            try:
                await self._own_until_fenced(host, client, target, epoch)
            except (StateError, StorageError):
                await self.pause(1.0)
        await client.close()

    async def _own_until_fenced(
        self, host: str, client: SbpClient, target: Target, epoch: int
    ) -> None:
        clean = bool(self.random.below(2))
        stream = await OwnedStream.open(client, target.stream_id, epoch, clean=clean)
        answers: list[asyncio.Future[int]] = []

        def promised(answer: asyncio.Future[int]) -> None:
            if not answer.cancelled() and answer.exception() is None:
                target.promise(answer.result() + 1)
                self.cluster.history.check_held(target.stream_id, answer.result() + 1)

        try:
            while not self.stopping:
                for _ in range(1 + self.random.below(4)):
                    header, *body = batch(self.body(host), base_offset=stream.next_offset)
                    assert isinstance(header, bytearray)
                    answers.append(stream.append(header, body))
                    answers[-1].add_done_callback(promised)
                await self.pause(self.pace)
                if len(answers) > 30:
                    await stream.flush()
                    answers = [answer for answer in answers if not answer.done()]
            await stream.flush()
        finally:
            await stream.close()
            await asyncio.gather(*answers, return_exceptions=True)

    async def keep_state(self, host: str, name: str, epochs: list[int]) -> None:
        """The broker's way to keep its state: a StateLog, taken over again and again."""
        client = self.cluster.client(host)
        while not self.stopping:
            epochs.append(epochs[-1] + 1)
            state = Numbers()
            answered = set(self.answered[name])
            try:
                log = await StateLog.open(
                    client,
                    name=name,
                    epoch=epochs[-1],
                    clean=False,
                    apply=state.apply,
                    snapshot=state.snapshot,
                    restore=state.restore,
                    runtime=client.runtime,
                    replica_nums=self.replicas,
                )
            except (StateError, StorageError, OffsetOutOfRangeError):
                await self.pause(1.0)  # a rival owns it by now, and may have trimmed it
                continue
            self._check_state(name, state, answered)
            await self._count(log, name)
            with suppress(HeadraceError):
                await log.close()
            await self.pause(3.0)
        await client.close()

    async def _count(self, log: StateLog, name: str) -> None:
        with suppress(StateError, StorageError):
            for number in range(1 + self.random.below(12)):
                self._events += 1
                event = self._events
                await log.append("event", event)
                self.answered[name].append(event)
                if number % 5 == 4:
                    with suppress(InvalidArgumentError):  # a rival's snapshot trimmed further
                        await log.write_snapshot()
                await self.pause(self.pace / 3)

    def _check_state(self, name: str, state: Numbers, answered: set[int]) -> None:
        missing = sorted(answered - set(state.numbers))
        if missing:
            self.cluster.history.complain(f"I1: state of {name} lacks answered events {missing}")
        if len(state.numbers) != len(set(state.numbers)):
            self.cluster.history.complain(f"I3: state of {name} applied an event twice")

    # Readers

    async def read(self, host: str) -> None:
        """Half of the reads as a client does them, half from any replica by hand."""
        client = self.cluster.client(host)
        while not self.stopping:
            await self.pause(self.pace / 3)
            if not self.targets:
                continue
            target = self.targets[self.random.below(len(self.targets))]
            try:
                how = self.random.below(5)
                if how < 2:
                    await self._read_as_client(client, target)
                elif how < 4:
                    await self._read_replica(host, client, target)
                else:
                    await self._ask_bounds(client, target)
            except (StateError, StorageError):
                pass
            except NotFoundError as error:
                self.cluster.history.complain(f"I1: stream {target.stream_id} is gone: {error}")
        await client.close()

    async def _read_as_client(self, client: SbpClient, target: Target) -> None:
        end = target.acknowledged
        if end <= target.trimmed:
            return
        offset = target.trimmed + self.random.below(end - target.trimmed)
        try:
            fetched = await client.fetch(
                target.stream_id, offset, max_bytes=FETCH_BYTES, max_wait_ms=500
            )
        except OffsetOutOfRangeError as error:
            if offset >= target.trimmed:
                self.cluster.history.complain(
                    f"I1: stream {target.stream_id} acknowledged {offset} < {end}: {error}"
                )
            return
        if not fetched.pieces and offset >= target.trimmed:
            self.cluster.history.complain(
                f"I1: stream {target.stream_id} acknowledged {offset} < {end}, and is empty there"
            )

    async def _ask_bounds(self, client: SbpClient, target: Target) -> None:
        acknowledged = target.acknowledged
        _, end = await client.bounds(target.stream_id)
        if end < acknowledged:
            self.cluster.history.complain(
                f"I1: stream {target.stream_id} is said to end at {end} < {acknowledged}"
            )

    async def _read_replica(self, host: str, client: SbpClient, target: Target) -> None:
        ranges = await client.list_ranges(target.stream_id)
        range_ = ranges[-1 - self.random.below(min(len(ranges), 3))]
        nodes = [node.data_node for node in range_.replica_nodes if node.data_node is not None]
        addresses = [node.advertise_addr for node in nodes if node.advertise_addr]
        if not addresses:
            return
        address = addresses[self.random.below(len(addresses))]
        end = range_.end_offset if range_.end_offset >= 0 else target.acknowledged + 2
        span = max(1, end - range_.start_offset)
        if self.random.below(2):
            span = min(span, 3)  # the tail is where it gets interesting
        offset = max(range_.start_offset, end - 1 - self.random.below(span))
        channel = await self.cluster.channel(host, address)
        try:
            await channel.call(
                Code.FETCH,
                m.FetchRequest(
                    max_wait_ms=100 * self.random.below(6),
                    min_bytes=1,
                    fetch_requests=(
                        m.FetchInfo(
                            stream_id=target.stream_id,
                            fetch_offset=offset,
                            batch_max_bytes=FETCH_BYTES,
                        ),
                    ),
                ),
            )
        finally:
            await channel.close()

    # Those who interfere

    async def interfere(self, host: str) -> None:
        """Seal, trim, and make and delete streams, now and then."""
        client = self.cluster.client(host)
        works = (self._seal, self._seal, self._trim, self._come_and_go)
        while not self.stopping:
            await self.pause(1.5 * self.pace)
            work = works[self.random.below(len(works))]
            with suppress(HeadraceError):
                await work(host, client)
        await client.close()

    def _plain(self) -> Target | None:
        plain = [target for target in self.targets if not target.owned]
        return plain[self.random.below(len(plain))] if plain else None

    async def _seal(self, host: str, client: SbpClient) -> None:
        if (target := self._plain()) is not None:
            ranges = await client.list_ranges(target.stream_id)
            await client.seal(target.stream_id, ranges[-1].range_index)

    async def _trim(self, host: str, client: SbpClient) -> None:
        target = self._plain()
        if target is not None and target.acknowledged > target.trimmed:
            span = (target.acknowledged - target.trimmed) // 2
            target.trimmed += self.random.below(span + 1)
            await client.trim(target.stream_id, target.trimmed)

    async def _come_and_go(self, host: str, client: SbpClient) -> None:
        """A short-lived stream; once its deletion was answered nothing can be appended."""
        made = await client.create_stream(replica_nums=1 + self.random.below(self.replicas))
        try:
            for _ in range(2):
                await client.append(made.stream_id, batch(self.body(host)), timeout=2.0)
        finally:
            await client.delete_stream(made.stream_id)
        try:
            await client.append(made.stream_id, batch(self.body(host)), timeout=1.0)
        except HeadraceError:
            return
        self.cluster.history.complain(f"F20: appended to stream {made.stream_id} after its end")


class Numbers:
    """State rebuilt from a log: the numbers it was told, in order."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def apply(self, version: int, kind: str, body: object) -> None:
        assert isinstance(body, int)
        self.numbers.append(body)

    def snapshot(self) -> tuple[int, list[bytes]]:
        return 1, [str(number).encode() for number in self.numbers]

    def restore(self, version: int, chunks: Iterable[bytes]) -> None:
        self.numbers = [int(chunk) for chunk in chunks]
