"""Clients of the workers, each a loop that asks for something again and again and notes what it
was told. A client is connected to any worker, and to another one whenever something fails."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.client.iggy import IggyClient
from headrace.errors import (
    AlreadyExistsError,
    HeadraceError,
    NotFoundError,
    UnauthenticatedError,
    UnauthorizedError,
)
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message, SendMessages, encode_send
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.refusals import InvalidOffsetError
from headrace.wire.iggy.vsr.client import Conversation
from tests.sim.workers.notes import Ban, Notes, Sent
from tests.sim.workers.world import PORT, World
from tests.simulator.runtime import SimulatedRandom

PARTITIONS = 4
WINDOW_PARTITIONS = 3
BATCH = 2
_TIMEOUT = 4.0
_CONNECT_SECONDS_MAX = 20.0
_WINDOW_SECONDS_MAX = 8.0
_MAY_SEND = Permissions(GlobalPermissions(send_messages=True))
_CONSUMER = Consumer.single(7)
_KEEPER = Consumer.single(8)


class Stuck(Exception):
    """Nobody serves, long after everything was mended."""


@dataclass(slots=True)
class Clients:
    world: World
    notes: Notes
    stopping: bool = False
    deadline: float = float("inf")
    """By when everybody must have been answered, once everything is mended."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self, kinds: tuple[str, ...]) -> None:
        for number, kind in enumerate(kinds):
            host = f"c{number}"
            random = self.world.random.derive(f"{kind} {number}")
            client = Client(self, host, random, kind)
            run: Callable[[], Awaitable[None]] = getattr(client, kind)
            self._tasks.append(self.world.simulation.start(host, client.run(run)))

    async def finish(self) -> None:
        self.stopping = True
        self.deadline = self.world.simulation.time() + _CONNECT_SECONDS_MAX
        await asyncio.gather(*self._tasks)

    async def prepare(self) -> None:
        await self.world.simulation.on("operator", self._prepare())

    async def _prepare(self) -> None:
        client = Client(self, "operator", self.world.random.derive("operator"), "operator")
        while True:
            try:
                iggy = await client.connected()
                with suppress(AlreadyExistsError):
                    await iggy.create_stream("s")
                with suppress(AlreadyExistsError):
                    await iggy.create_topic("s", "t", partitions_count=PARTITIONS)
                with suppress(AlreadyExistsError):
                    await iggy.create_topic("s", "w", partitions_count=WINDOW_PARTITIONS)
                with suppress(AlreadyExistsError):
                    await iggy.create_group("s", "t", "g")
                with suppress(AlreadyExistsError):
                    await iggy.create_user("ann", "secret", permissions=_MAY_SEND)
                return await client.leave()
            except HeadraceError:
                await client.leave()

    async def read_all(self) -> None:
        """When everything is mended: what is there, and whether that may be."""
        await self.world.simulation.on("operator", self._read_all())

    async def _read_all(self) -> None:
        client = Client(self, "operator", self.world.random.derive("reader"), "operator")
        logs = {p: await client.read_partition("t", p) for p in range(PARTITIONS)}
        self.notes.check(logs)
        await self._check_windows(client)
        there = await client.topics()
        for name, exists in self.notes.topics.items():
            if (name in there) != exists:
                self.notes.complain(f"topic: {name} is {'not ' * exists}there")
        for partition in range(PARTITIONS):
            self.notes.on_offset(partition, await client.stored(partition))
        await client.leave()

    async def _check_windows(self, client: Client) -> None:
        """One that was interrupted is published soon."""
        deadline = self.world.simulation.time() + _WINDOW_SECONDS_MAX
        while True:
            windows = [await client.read_partition("w", p) for p in range(WINDOW_PARTITIONS)]
            logs = [[bytes(m.payload) for m in log] for log in windows]
            if self.notes.windows_whole(logs):
                return
            if self.world.simulation.time() > deadline:
                return self.notes.complain(f"window: {logs}, {self.notes.windows} published")
            await asyncio.sleep(0.5)


class Client:
    def __init__(self, clients: Clients, host: str, random: SimulatedRandom, kind: str) -> None:
        self._clients = clients
        self._world = clients.world
        self._notes = clients.notes
        self._random = random
        self._host = host
        self._kind = kind
        self._user = ("iggy", "iggy")
        self._talk: Conversation | None = None
        self._iggy: IggyClient | None = None
        self._number = 0

    async def run(self, main: Callable[[], Awaitable[None]]) -> None:
        try:
            await main()
        except Stuck as error:
            cause = error.__cause__
            self._notes.complain(f"stuck: {self._kind}: {error}: {cause!r} {cause}")
        finally:
            await self.leave()

    @property
    def _going(self) -> bool:
        return not self._clients.stopping

    def _time(self) -> float:
        return self._world.simulation.time()

    async def _pause(self, most: float = 0.3) -> None:
        await asyncio.sleep(self._random.uniform() * most)

    async def connected(self) -> IggyClient:
        deadline = self._time() + _CONNECT_SECONDS_MAX
        while self._iggy is None or not self._iggy.usable:
            if self._time() > deadline:
                raise Stuck("no worker takes a login")
            number = self._random.below(self._world.workers_count)
            runtime = self._world.simulation.runtime(self._host)
            try:
                iggy = await IggyClient.connect(
                    runtime,
                    self._world.machine(number),
                    PORT + number,
                    timeout=_TIMEOUT,
                    conversation=self._talk,
                )
            except HeadraceError:
                await asyncio.sleep(0.1)
                continue
            try:
                await iggy.login(*self._user)
                await self._on_login(iggy)
                self._iggy = iggy
            except HeadraceError:
                await iggy.close()
                await asyncio.sleep(0.1)
        return self._iggy

    async def _on_login(self, iggy: IggyClient) -> None:
        if self._kind == "member":
            await iggy.join_group("s", "t", "g")

    async def leave(self) -> None:
        if self._iggy is not None:
            iggy, self._iggy = self._iggy, None
            await iggy.close()

    async def _failed(self) -> None:
        """Go to another worker, mostly."""
        if self._time() > self._clients.deadline:
            raise Stuck("asked again and again, answered never") from sys.exception()
        if self._random.below(4) or self._iggy is None or not self._iggy.usable:
            await self.leave()
        await self._pause(0.1)

    # -- kinds of clients

    async def plain(self) -> None:
        """Send; what got no answer is sent again under another name."""
        while self._going:
            await self._send_plainly()
            await self._pause()

    async def banned(self) -> None:
        """A user whose rights are taken away now and then."""
        self._user = ("ann", "secret")
        while self._going:
            await self._send_plainly()
            await self._pause(0.15)

    async def _send_plainly(self) -> None:
        self._number += 1
        partition = self._random.below(PARTITIONS)
        payloads = tuple(b"%s.%d.%d" % (self._host.encode(), self._number, i) for i in range(BATCH))
        iggy = await self.connected()
        begun = self._time()
        try:
            to = Partitioning.to_partition(partition)
            await iggy.send("s", "t", [Message(each) for each in payloads], partitioning=to)
        except (UnauthorizedError, UnauthenticatedError):
            self._notes.refused.update(payloads)
            if self._kind != "banned":
                self._notes.complain(f"right: {self._kind} was refused at {begun:.3f}")
            await self._failed()
        except HeadraceError:
            self._notes.unknown.update(payloads)
            await self._failed()
        else:
            ended = self._time()
            self._notes.sent.append(Sent(partition, payloads, begun, ended))
            self._notes.count(self._kind)
            if self._kind == "banned":
                self._notes.banned_sends.append((begun, ended))

    async def numbered(self) -> None:
        """Send with numbers (dialect C), again as it was until it is answered."""
        self._talk = Conversation(self._host.encode().ljust(16, b"."))
        while self._going:
            self._number += 1
            payloads = tuple(
                b"%s.%d.%d" % (self._host.encode(), self._number, i) for i in range(BATCH)
            )
            messages = [
                Message(payload, id=self._number * BATCH + i) for i, payload in enumerate(payloads)
            ]
            partition = self._random.below(PARTITIONS + 1)
            to = (
                Partitioning.to_partition(partition)
                if partition < PARTITIONS
                else Partitioning.balanced()
            )
            await self._send_numbered(payloads, encode_send("s", "t", to, messages))
            await self._pause()

    async def _send_numbered(self, payloads: tuple[bytes, ...], request: SendMessages) -> None:
        begun, first = 0.0, True
        while True:
            iggy = await self.connected()
            begun = begun or self._time()
            try:
                if first:
                    first = False
                    sent = await iggy.call(c.SEND_MESSAGES, request)
                else:
                    self._notes.count("repeated")
                    sent = await iggy.again(c.SEND_MESSAGES)
            except HeadraceError:
                await self._failed()
                continue
            placed = sent.placed[0]
            ended = self._time()
            batch = Sent(placed.partition, payloads, begun, ended, placed.base_offset)
            self._notes.sent.append(batch)
            return self._notes.count(self._kind)

    async def consumer(self) -> None:
        """Poll with auto-commit: nothing comes twice."""
        while self._going:
            partition = self._random.below(PARTITIONS)
            commits = bool(self._random.below(4))
            iggy = await self.connected()
            try:
                polled = await iggy.poll(
                    "s", "t", partition=partition, consumer=_CONSUMER, strategy=Strategy.next(),
                    count=3, auto_commit=commits,
                )  # fmt: skip
            except HeadraceError:
                if commits:
                    self._notes.doubtful.add(partition)
                await self._failed()
            else:
                self._notes.on_consumed(partition, list(polled.messages()), commits=commits)
                self._notes.count(self._kind)
            await self._pause()

    async def keeper(self) -> None:
        """Store offsets, and look what is stored."""
        while self._going:
            partition = self._random.below(PARTITIONS)
            if self._random.below(2):
                await self._store(partition)
            else:
                try:
                    self._notes.on_offset(partition, await self._stored(partition))
                    self._notes.count(self._kind)
                except HeadraceError:
                    await self._failed()
            await self._pause()

    async def _store(self, partition: int) -> None:
        maybe = self._notes.maybe_stored.setdefault(partition, set())
        offset = max(self._notes.stored.get(partition, -1), *maybe, -1) + 1
        iggy = await self.connected()
        try:
            await iggy.store_consumer_offset(_KEEPER, "s", "t", partition=partition, offset=offset)
        except InvalidOffsetError:
            return  # nothing is there yet
        except HeadraceError:
            maybe.add(offset)
            await self._failed()
        else:
            self._notes.stored[partition] = offset
            self._notes.count(self._kind)

    async def _stored(self, partition: int) -> int | None:
        iggy = await self.connected()
        found = await iggy.get_consumer_offset(_KEEPER, "s", "t", partition)
        return None if found is None else found.stored_offset

    async def member(self) -> None:
        """Read as a member of a group: what one is given, no other gets."""
        while self._going:
            iggy = await self.connected()
            self._number += 1
            try:
                polled = await iggy.poll(
                    "s", "t", consumer=Consumer.group("g"), strategy=Strategy.next(), count=3,
                    auto_commit=True,
                )  # fmt: skip
            except HeadraceError:
                await self._failed()
            else:
                name = f"{self._host}#{self._number}"
                self._notes.on_given(name, polled.partition, list(polled.messages()))
                self._notes.count(self._kind)
            await self._pause()

    async def warden(self) -> None:
        """Take a user's rights away, and give them back."""
        while self._going:
            await asyncio.sleep(0.3 + 0.5 * self._random.uniform())
            await self._permit(None)
            ban = Ban(self._time())
            await asyncio.sleep(1.2 + self._random.uniform())
            self._notes.bans.append(Ban(ban.begins, self._time()))
            await self._permit(_MAY_SEND)
            self._notes.count(self._kind)

    async def _permit(self, permissions: Permissions | None) -> None:
        while True:
            iggy = await self.connected()
            try:
                return await iggy.update_permissions("ann", permissions)
            except HeadraceError:
                await self._failed()

    async def architect(self) -> None:
        """Make and delete topics; whoever was answered sees the change."""
        while self._going:
            await self._pause(0.5)
            self._number += 1
            name = f"{self._host}.{self._number}"
            await self._change(name, exists=True)
            await self._pause(0.3)
            if self._random.below(2):
                await self._change(name, exists=False)

    async def _change(self, name: str, *, exists: bool) -> None:
        self._notes.topics.pop(name, None)
        while True:
            iggy = await self.connected()
            try:
                if exists:
                    await iggy.create_topic("s", name, partitions_count=2)
                else:
                    await iggy.delete_topic("s", name)
            except (AlreadyExistsError, NotFoundError):
                self._notes.topics[name] = exists  # by the request before, which was not answered
                return
            except HeadraceError:
                await self._failed()
                continue
            self._notes.topics[name] = exists
            self._notes.count(self._kind)
            with suppress(HeadraceError):
                if (await iggy.get_topic("s", name) is not None) != exists:
                    self._notes.complain(f"topic: {name} is not what was answered just now")
            return

    async def publisher(self) -> None:
        """Publish windows over several partitions, each whole and once."""
        window = 0
        while self._going:
            payloads = tuple(b"w%d.%d" % (window, p) for p in range(WINDOW_PARTITIONS))
            self._notes.open_window = payloads
            while not await self._publish(window, payloads):
                await self._failed()
                if self._clients.stopping and self._random.below(2):
                    return
            self._notes.windows.append(payloads)
            self._notes.open_window = ()
            self._notes.count(self._kind)
            window += 1
            await self._pause(0.2)

    async def _publish(self, window: int, payloads: tuple[bytes, ...]) -> bool:
        try:
            iggy = await self.connected()
            self._number += 1
            opened = await iggy.open_publisher("p", f"{self._number}")
            if opened.last_window >= window:
                return True
            manifest = []
            for partition, payload in enumerate(payloads):
                to = Partitioning.to_partition(partition)
                batch = encode_send("s", "w", to, [Message(payload)])
                manifest.append(await iggy.stage(opened, window, batch))
            await iggy.close_window(
                opened, previous=opened.last_window, window=window, manifest=manifest
            )
        except HeadraceError:
            return False
        return True

    # -- at the end

    async def _insist(self, ask: Callable[[], Awaitable[object]]) -> object:
        deadline = self._time() + _CONNECT_SECONDS_MAX
        while True:
            try:
                return await ask()
            except HeadraceError as error:
                if self._time() > deadline:
                    raise Stuck(str(error)) from error
                await self.leave()
                await asyncio.sleep(0.2)

    async def read_partition(self, topic: str, partition: int) -> list[Message]:
        found: list[Message] = []

        async def more() -> int:
            polled = await (await self.connected()).poll(
                "s", topic, partition=partition, strategy=Strategy.offset(len(found)), count=1000
            )
            found.extend(polled.messages())
            return polled.count

        while await self._insist(more):
            pass
        return found

    async def topics(self) -> set[str]:
        async def ask() -> set[str]:
            return {topic.name for topic in await (await self.connected()).get_topics("s")}

        found = await self._insist(ask)
        assert isinstance(found, set)
        return found

    async def stored(self, partition: int) -> int | None:
        async def ask() -> int | None:
            return await self._stored(partition)

        found = await self._insist(ask)
        assert found is None or isinstance(found, int)
        return found
