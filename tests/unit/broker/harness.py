"""A broker without sockets: requests go through the dispatcher as bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headrace.broker.catalogue import decisions
from headrace.broker.catalogue.passwords import Passwords
from headrace.broker.core import Broker, Identity, ProcessFigures
from headrace.broker.dispatch import Dispatcher
from headrace.broker.poll.held_polls import HeldPoll
from headrace.broker.sessions.sessions import Session
from headrace.config.broker import BrokerSettings
from headrace.errors import HeadraceError, NotLeaderError
from headrace.runtime.interfaces import Clock, Runtime
from headrace.runtime.system import system_runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import error_of
from headrace.wire.iggy.messages import users
from headrace.wire.iggy.messages.messages import Message, PolledMessages, PollMessages, encode_send
from headrace.wire.iggy.messages.topics import Compression, CreateStream, CreateTopic
from headrace.wire.iggy.primitives import Consumer, Identifier, Partitioning, Strategy
from tests.unit.broker.fake_cluster import FakeCluster

Q = TypeVar("Q", bound=c.Encodable)
R = TypeVar("R")

NOW_US = 1_700_000_000_000_000
QUICK = BrokerSettings(login_delay_ms_max=100)  # refused logins are answered without much delay


class FakeClock(Clock):
    """Time stands still until a test moves it; sleeping moves nothing and takes no time."""

    def __init__(self) -> None:
        self.now_us_ = NOW_US
        self.slept: list[float] = []
        self._real = system_runtime().clock

    def monotonic(self) -> float:
        return self._real.monotonic()

    def time_ns(self) -> int:
        return self.now_us_ * 1000

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self._real.sleep(0.001 if seconds < 0.5 else seconds)


def fake_runtime() -> tuple[Runtime, FakeClock]:
    clock = FakeClock()
    return replace(system_runtime(), clock=clock), clock


@dataclass
class Client:
    """One connection."""

    dispatcher: Dispatcher
    session: Session
    answered_at_once: int = 0

    async def status(self, code: int, payload: bytes = b"") -> int:
        return (
            await self.dispatcher.on_request(self.session, code, memoryview(bytearray(payload)))
        )[0]

    async def call(self, command: c.Command[Q, R], request: Q) -> R:
        dialect = self.session.dialect
        payload = bytearray(b"".join(command.encode_request(request, dialect)))
        view = memoryview(payload)
        status, at_once = 0, self.dispatcher.answer_at_once(self.session, command.code, view)
        if isinstance(at_once, HeldPoll):  # as the connection loop does, and in what follows
            due = asyncio.Event()
            at_once.on_due = due.set
            await due.wait()
            at_once = at_once.answer()
        if at_once is None:
            status, pieces = await self.dispatcher.on_request(self.session, command.code, view)
        else:
            pieces = at_once
            self.answered_at_once += 1
        if status:
            raise error_of(status)
        body = b"".join(pieces)
        assert len(body) != 1, "clients take a reply of one byte for an empty one"
        return command.decode_response(body, dialect)

    async def login(self, name: str = "iggy", password: str = "iggy") -> int:
        return (await self.call(c.LOGIN_USER, users.LoginUser(name, password))).user_id

    async def stream(self, name: str = "s") -> None:
        await self.call(c.CREATE_STREAM, CreateStream(name))

    async def topic(self, stream: Identifier = "s", name: str = "t", partitions: int = 1,
                    *, expiry: int = 0, max_size: int = 0) -> None:  # fmt: skip
        await self.call(
            c.CREATE_TOPIC,
            CreateTopic(stream, partitions, Compression.NONE, expiry, max_size, 1, name),
        )

    async def send(
        self,
        *payloads: bytes,
        stream: Identifier = "s",
        topic: Identifier = "t",
        to: Partitioning | None = None,
    ) -> None:
        await self.call(
            c.SEND_MESSAGES,
            encode_send(
                stream, topic, to or Partitioning.to_partition(0), [Message(p) for p in payloads]
            ),
        )

    async def poll(
        self,
        strategy: Strategy | None = None,
        count: int = 100,
        *,
        stream: Identifier = "s",
        topic: Identifier = "t",
        partition: int | None = 0,
        consumer: Consumer | None = None,
        commit: bool = False,
    ) -> PolledMessages:
        return await self.call(
            c.POLL_MESSAGES,
            PollMessages(
                consumer or Consumer.single(),
                stream,
                topic,
                partition,
                strategy or Strategy.offset(0),
                count,
                commit,
            ),
        )


class FakeLease:
    """Held until a test says otherwise; `comes_back` makes whoever wants it wait."""

    def __init__(self) -> None:
        self.holds = True
        self.comes_back: asyncio.Event | None = None

    def check(self) -> None:
        if not self.holds:
            raise NotLeaderError

    async def regain(self) -> None:
        if self.comes_back is not None:
            await self.comes_back.wait()
            self.holds = True
        self.check()


@dataclass
class Harness:
    cluster: FakeCluster
    broker: Broker
    dispatcher: Dispatcher
    clock: FakeClock
    lost: list[bool] = field(default_factory=list)
    lease: FakeLease = field(default_factory=FakeLease)
    ports: int = 40000

    def connect(self, dialect: Dialect = Dialect.B2) -> Client:
        """`dialect` is what the broker assumes of this connection."""
        self.ports += 1
        session = self.broker.sessions.open(
            f"127.0.0.1:{self.ports}", dialect, self.clock.monotonic()
        )
        return Client(self.dispatcher, session)

    async def root(self, dialect: Dialect = Dialect.B2) -> Client:
        client = self.connect(dialect)
        await client.login()
        return client

    def disconnect(self, client: Client) -> None:
        self.broker.logout(client.session)
        self.broker.sessions.close(client.session)


@asynccontextmanager
async def opened(
    cluster: FakeCluster | None = None,
    *,
    epoch: int = 1,
    clean: bool = False,
    settings: BrokerSettings | None = None,
) -> AsyncIterator[Harness]:
    """A leading broker with root iggy/iggy; a second one on the same cluster replays."""
    cluster = cluster or FakeCluster()
    runtime, clock = fake_runtime()
    client = cluster.client(runtime)
    identity = Identity(
        cluster_uuid="c0ffee",
        cluster_name="test",
        placement_address="127.0.0.1:12378",
        version="0.1.0",
        secret=b"s" * 32,
        started_us=NOW_US,
    )
    broker = Broker(runtime, settings or QUICK, client, identity, figures=ProcessFigures)
    broker.passwords.close()
    broker.passwords = Passwords(runtime, time_cost=1, memory_kib=8)
    lost: list[bool] = []
    await broker.open(epoch=epoch, clean=clean, on_fenced=lambda: lost.append(True))
    if not broker.catalogue.users:
        password_hash = await broker.passwords.hash("iggy")
        await broker.commit(
            lambda: decisions.create_root(
                broker.catalogue, name="iggy", password_hash=password_hash, now_us=NOW_US
            )
        )
    lease = FakeLease()
    harness = Harness(cluster, broker, Dispatcher(broker, lease), clock, lost, lease)
    try:
        yield harness
    finally:
        await broker.close()
        await client.close()


async def code_of(awaitable: object) -> int:
    """The number a refused call was answered with; 0 when it was not."""
    try:
        await awaitable  # type: ignore[misc]  # any awaitable will do
    except HeadraceError as error:
        return int(getattr(error, "code", -1))
    return 0
