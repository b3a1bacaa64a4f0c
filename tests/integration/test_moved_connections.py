"""Connections move to the worker that leads what they use, and their clients notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.broker.shards import moving
from headrace.broker.shards.moving import REQUESTS
from headrace.broker.shards.worker import Worker
from headrace.broker.term.transports import Encryption
from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError, UnavailableError
from headrace.net.tls import ClientTls, TlsAcceptor
from headrace.runtime.interfaces import Detached
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import Message, PollMessages, encode_send
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from headrace.wire.iggy.vsr.client import Conversation
from tests.integration.real_clients import VERSIONS, end_spawned, finish, line_of, spawn
from tests.integration.test_iggy_dialects import Wire, answer, order
from tests.integration.test_workers_of_a_broker import members, spread, until
from tests.integration.worker_stack import WorkerStack
from tests.unit.net.certificates import contexts, development

MORE = REQUESTS + 4


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[WorkerStack]:
    stack = await WorkerStack(str(tmp_path)).start()
    try:
        await until(lambda: spread(stack))
        async with await stack.connect(0) as client:
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=64)
        yield stack
    finally:
        await end_spawned()
        await stack.stop()


@dataclass
class At:
    """Where `Wire` connects to."""

    port: int


def port_of(stack: WorkerStack, number: int) -> int:
    return int(stack.workers[number].address.rpartition(":")[2])


def partitions_of(stack: WorkerStack, number: int) -> list[int]:
    service = stack.workers[number]
    assert service.worker is not None
    partitions = service.broker.catalogue.topic("s", "t").partitions
    return [p.id for p in partitions if service.worker.shards.leads(p.shard)]


def led_by(stack: WorkerStack, number: int) -> int:
    """The first partition of the topic that the worker leads."""
    return partitions_of(stack, number)[0]


def passed_on(stack: WorkerStack) -> int:
    return sum(service.forwarding.passed_on for service in stack.workers.values())


def given(stack: WorkerStack) -> int:
    return sum(service.moving.given for service in stack.workers.values())


def sessions(stack: WorkerStack, number: int) -> list[int]:
    return [session.client_id for session in stack.workers[number].broker.sessions]


def coordinator(stack: WorkerStack) -> int:
    return next(n for n, w in stack.workers.items() if w.broker.workers.coordinates)


async def connect_c(
    stack: WorkerStack, number: int, talk: Conversation | None = None
) -> IggyClient:
    talk = talk or Conversation(stack.runtime.random.bytes(16))
    port = port_of(stack, number)
    client = await IggyClient.connect(stack.runtime, "127.0.0.1", port, conversation=talk)
    await client.login("iggy", "iggy")
    return client


async def send(client: IggyClient, partition: int, first: int, count: int = 1) -> None:
    """Requests of one message each."""
    to = Partitioning.to_partition(partition)
    for number in range(first, first + count):
        await client.send("s", "t", [Message(b"%d" % number)], partitioning=to)


async def payloads(client: IggyClient, partition: int) -> list[int]:
    polled = await client.poll("s", "t", partition=partition, strategy=Strategy.first(), count=9999)
    return [int(bytes(message.payload)) for message in polled.messages()]


async def test_a_producer_goes_to_the_leader_of_its_partition(stack: WorkerStack) -> None:
    partition = led_by(stack, 1)
    async with await stack.connect(0) as client:
        me = await client.get_me()
        await send(client, partition, 0, MORE)
        await until(lambda: stack.workers[1].moving.taken == 1)
        before = passed_on(stack)
        await send(client, partition, MORE, 100)
        assert passed_on(stack) == before
        assert await client.get_me() == me
        assert me.client.client_id in sessions(stack, 1)
        assert me.client.client_id not in sessions(stack, 0)
        assert await payloads(client, partition) == list(range(MORE + 100))
        statistics = stack.workers[0].transports
        assert statistics is not None
        assert statistics.tcp.statistics()["connections"] == 0
        assert statistics.tcp.statistics()["held_bytes"] == 0
        # It is a client of the other worker in every way, and told of once.
        async with await stack.connect(2) as other:
            listed = [client.client_id for client in (await other.get_clients())]
            assert sorted(listed) == sorted(set(listed))
            assert me.client.client_id in listed
    await until(lambda: not sessions(stack, 1))


async def test_who_uses_partitions_of_several_workers_stays(stack: WorkerStack) -> None:
    partitions = [led_by(stack, number) for number in (1, 2)]
    async with await stack.connect(0) as client:
        for turn in range(3 * REQUESTS):
            await send(client, partitions[turn % 2], turn)
        for turn in range(3 * REQUESTS):
            await send(client, partitions[0], turn)
            if not turn % 5:
                await payloads(client, led_by(stack, 0))
        assert given(stack) == 0


async def test_tls_stays_and_plain_connections_of_the_same_port_move(tmp_path: Path) -> None:
    server, trusting = contexts()
    made, _ = development()
    acceptor = TlsAcceptor(server, required=False)
    encryption = Encryption(certificate=made.chain, key=made.key, tls=acceptor)
    stack = await WorkerStack(str(tmp_path), encryption=encryption).start()
    try:
        await until(lambda: spread(stack))
        port = port_of(stack, 0)
        tls = ClientTls(context=trusting, server_name="localhost")
        async with await IggyClient.connect(stack.runtime, "127.0.0.1", port, tls=tls) as client:
            await client.login("iggy", "iggy")
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=64)
            partition = led_by(stack, 1)
            await send(client, partition, 0, 3 * REQUESTS)
            assert given(stack) == 0
            assert passed_on(stack) >= 3 * REQUESTS
            (session,) = stack.workers[0].broker.sessions
            assert session.trail is None, "nobody asks again"
        async with await stack.connect(0) as client:
            await send(client, partition, 3 * REQUESTS, MORE)
            assert given(stack) == 1
            assert await payloads(client, partition) == list(range(3 * REQUESTS + MORE))
    finally:
        await stack.stop()


@pytest.mark.parametrize("dialect", [Dialect.A, Dialect.B1, Dialect.B2])
async def test_classic_dialects(stack: WorkerStack, dialect: Dialect) -> None:
    partition = led_by(stack, 2)
    to = Partitioning.to_partition(partition)
    async with Wire(At(port_of(stack, 0)), dialect) as wire:  # type: ignore[arg-type]  # a port is all it needs
        await wire.login()
        for number in range(3 * REQUESTS):
            sent = [Message(b"%d" % number)]
            await wire.call(c.SEND_MESSAGES, encode_send("s", "t", to, sent))
            request = PollMessages(Consumer.single(9), "s", "t", partition, Strategy.first(), 1000)
            polled = (await wire.call(c.POLL_MESSAGES, request)).messages()
            assert [int(bytes(each.payload)) for each in polled] == list(range(number + 1))
        assert given(stack) == 1
        (session,) = stack.workers[2].broker.sessions
        assert session.dialect is dialect


async def test_requests_that_were_sent_ahead_go_with_it(stack: WorkerStack) -> None:
    """Many at once, and the last one in pieces: no answer is missing, doubled or out of order."""
    partition = led_by(stack, 1)
    to = Partitioning.to_partition(partition)
    wire = Wire(At(port_of(stack, 0)), Dialect.B2)  # type: ignore[arg-type]  # a port is all it needs
    async with wire:
        await wire.login()
        number = 0
        for _ in range(4):
            frames = []
            for _ in range(REQUESTS):
                pieces = c.SEND_MESSAGES.encode_request(
                    encode_send("s", "t", to, [Message(b"%d" % number)]), Dialect.B2
                )
                frames.append(b"".join(encode_request(c.SEND_MESSAGES.code, pieces)))
                number += 1
            data = b"".join(frames)
            wire._writer.write(data[:-20])
            await asyncio.sleep(0.2)
            wire._writer.write(data[-20:-3])
            await asyncio.sleep(0.05)
            wire._writer.write(data[-3:])
            answers = await wire._reader.readexactly(8 * REQUESTS)
            assert answers == bytes(8 * REQUESTS)
        assert given(stack) == 1
        assert not sessions(stack, 0)
    async with await stack.connect(1) as client:
        assert await payloads(client, partition) == list(range(number))


async def test_dialect_c_and_a_send_that_is_repeated(stack: WorkerStack) -> None:
    partition = led_by(stack, 1)
    to = Partitioning.to_partition(partition)
    talk = Conversation(stack.runtime.random.bytes(16))
    async with await connect_c(stack, 0, talk) as client:
        await send(client, partition, 0, MORE)
        assert given(stack) == 1
        before = passed_on(stack)
        await send(client, partition, MORE, MORE)
        assert passed_on(stack) == before
        # Its connection ends with a SEND; the same session sends it again, through a third worker.
        last = encode_send("s", "t", to, [Message(b"%d" % (2 * MORE), id=77)])
        await client.call(c.SEND_MESSAGES, last)
        client._connection.abort()
    await until(lambda: not sessions(stack, 1))
    async with await connect_c(stack, 2, talk) as again:
        await again.again(c.SEND_MESSAGES)
        assert await payloads(again, partition) == list(range(2 * MORE + 1))
    async with await connect_c(stack, 0) as client:
        await send(client, partition, 2 * MORE + 1, MORE)
        assert given(stack) == 2
        client._connection.abort()
    await until(lambda: not sessions(stack, 1))
    async with await connect_c(stack, 1) as reader:
        assert len(await payloads(reader, partition)) == 3 * MORE + 1


async def test_the_last_send_before_a_move_is_known_after_it(stack: WorkerStack) -> None:
    """Its answer may be lost with the connection, and another session then send it again."""
    partition = led_by(stack, 1)
    to = Partitioning.to_partition(partition)
    async with await connect_c(stack, 0) as client:
        for number in range(REQUESTS):
            request = encode_send("s", "t", to, [Message(b"%d" % number, id=number + 1)])
            await client.call(c.SEND_MESSAGES, request)
        await until(lambda: stack.workers[1].moving.taken == 1)
        client._connection.abort()
    await until(lambda: not sessions(stack, 1))
    async with await connect_c(stack, 1) as other:
        request = encode_send("s", "t", to, [Message(b"15", id=16)])
        await other.call(c.SEND_MESSAGES, request)
        assert await payloads(other, partition) == list(range(REQUESTS))


async def test_members_of_groups_keep_their_place(stack: WorkerStack) -> None:
    async with AsyncExitStack() as closing:
        clients = [
            await closing.enter_async_context(await stack.connect(number)) for number in range(3)
        ]
        await clients[0].create_group("s", "t", "g")
        for client in clients:
            await client.join_group("s", "t", "g")
        group = await clients[0].get_group("s", "t", "g")
        ids = [(await client.get_me()).client.client_id for client in clients]
        target = (coordinator(stack) + 1) % 3
        mover = (target + 1) % 3
        await send(clients[mover], led_by(stack, target), 0, MORE)
        await until(lambda: ids[mover] in sessions(stack, target))
        assert await clients[0].get_group("s", "t", "g") == group
        for _ in range(3):
            await clients[mover].poll(
                "s", "t", consumer=Consumer.group("g"), strategy=Strategy.next()
            )
        # The worker it came from ends: that is nothing to it.
        third = next(n for n in range(3) if n not in (target, mover))
        if mover != coordinator(stack):
            await clients[mover].get_group("s", "t", "g")
            await stack.stop_worker(mover)
            await until(lambda: len(members(stack)) == 2 or ids[mover] in present(stack))
            assert ids[mover] in present(stack)
        # The one it went to ends, and so does its membership.
        if target != coordinator(stack):
            await stack.stop_worker(target)
            await until(lambda: ids[mover] not in present(stack))
        assert third in stack.workers


def present(stack: WorkerStack) -> set[int]:
    service = stack.workers[coordinator(stack)]
    membership = service.broker.membership
    return {m.client_id for uid in membership.groups() for m in membership.members(uid)}


async def test_members_that_leave_are_forgotten_wherever_they_were(stack: WorkerStack) -> None:
    async with await stack.connect(1) as client:
        await client.create_group("s", "t", "g")
        await client.join_group("s", "t", "g")
        await send(client, led_by(stack, 2), 0, MORE)
        assert given(stack) == 1
        worker = stack.workers[coordinator(stack)].worker
        assert worker is not None
        known = worker.coordinator
        assert known is not None
        holder = stack.workers[2].holder
        await until(lambda: list(known._clients.values()) == [holder])
    await until(lambda: not known._clients and not present(stack))


async def test_a_member_goes_on_at_the_partition_it_was(stack: WorkerStack) -> None:
    async with await stack.connect(0) as client:
        await client.create_group("s", "t", "g")
        await client.join_group("s", "t", "g")
        polled = [
            (await client.poll("s", "t", consumer=Consumer.group("g"))).partition for _ in range(4)
        ]
        assert polled == [0, 1, 2, 3]
        await send(client, led_by(stack, 1), 0, MORE)
        assert given(stack) == 1
        assert (await client.poll("s", "t", consumer=Consumer.group("g"))).partition == 4


@pytest.mark.parametrize("what", ["delete", "password", "rights"])
async def test_who_is_out_is_out_after_a_move(stack: WorkerStack, what: str) -> None:
    partition = led_by(stack, 1)
    async with await stack.connect(2) as admin, await stack.connect(0, login=False) as client:
        everything = Permissions(GlobalPermissions(send_messages=True, poll_messages=True))
        await admin.create_user("ann", "secret-of-ann", permissions=everything)
        await client.login("ann", "secret-of-ann")
        await send(client, partition, 0, MORE)
        assert given(stack) == 1
        await take_away(admin, what)
        with pytest.raises(HeadraceError):
            await send(client, partition, 0)


async def take_away(admin: IggyClient, what: str) -> None:
    if what == "delete":
        await admin.delete_user("ann")
    elif what == "password":
        await admin.change_password("ann", current="secret-of-ann", new="another-of-ann")
    else:
        await admin.update_permissions("ann", None)


@pytest.mark.parametrize("what", ["delete", "password", "rights"])
async def test_who_is_out_while_it_moves_is_out(
    stack: WorkerStack, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = led_by(stack, 1)
    async with await stack.connect(2) as admin, await stack.connect(0, login=False) as client:
        everything = Permissions(GlobalPermissions(send_messages=True, poll_messages=True))
        await admin.create_user("ann", "secret-of-ann", permissions=everything)
        await client.login("ann", "secret-of-ann")
        links = stack.workers[0]._links
        move = links.move

        async def slowly(*arguments: object) -> object:
            await take_away(admin, what)
            return await move(*arguments)  # type: ignore[arg-type]  # as they came

        monkeypatch.setattr(links, "move", slowly)
        with pytest.raises(HeadraceError):
            await send(client, partition, 0, MORE)
        assert given(stack) == 1
        (session,) = stack.workers[1].broker.sessions
        assert (session.user_uid is None) == (what != "rights")


async def test_a_worker_that_takes_nobody_leaves_it_where_it_is(
    stack: WorkerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = led_by(stack, 1)
    taking = stack.workers[1].moving

    def refuse(*_: object) -> None:
        raise UnavailableError("the catalogue is not known as far")

    async with await stack.connect(0) as client:
        with monkeypatch.context() as patched:
            patched.setattr(taking, "on_move", refuse)
            await send(client, partition, 0, MORE)
            assert given(stack) == 0
        await send(client, partition, MORE, MORE)
        assert given(stack) == 0, "it waits before it tries again"
        await asyncio.sleep(1.0)
        await send(client, partition, 2 * MORE, MORE)
        assert given(stack) == 1
        assert await payloads(client, partition) == list(range(3 * MORE))


async def test_who_knows_less_of_the_catalogue_takes_nobody(
    stack: WorkerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = led_by(stack, 1)
    behind = stack.workers[1].worker
    known: property = vars(Worker)["known_offset"]
    less = property(lambda self: 0 if self is behind else known.__get__(self))
    monkeypatch.setattr(Worker, "known_offset", less)
    async with await stack.connect(0) as client:
        await send(client, partition, 0, MORE)
        assert given(stack) == 0


async def test_a_worker_that_dies_while_a_connection_comes(
    stack: WorkerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the descriptor, and nobody knows whether it goes on: the connection ends, and what was
    acknowledged is there."""
    partition = led_by(stack, 1)
    transport = stack.runtime.transport
    post = transport.post
    dying: list[asyncio.Task[None]] = []

    def die(path: str, token: bytes, detached: Detached) -> bool:
        posted = post(path, token, detached)
        dying.append(asyncio.ensure_future(stack.stop_worker(1)))
        return posted

    monkeypatch.setattr(type(transport), "post", lambda self, *a: die(*a), raising=False)
    async with await stack.connect(0) as client:
        sent = 0
        try:
            for sent in range(MORE):
                await send(client, partition, sent)
            sent = MORE
        except UnavailableError:
            assert sent >= REQUESTS
        assert len(dying) == 1
        await dying[0]
    monkeypatch.undo()
    await until(lambda: spread(stack))
    async with await stack.connect(0) as client:
        stored = await payloads(client, partition)
        assert stored[:sent] == list(range(sent))
        assert stored in (list(range(sent)), list(range(sent + 1)))


@pytest.mark.parametrize("in_c", [False, True])
async def test_many_that_go_to_and_fro_lose_nothing(
    stack: WorkerStack, in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pause, each of them moves at every change of its partition."""
    monkeypatch.setattr(moving, "PAUSE_SECONDS", 0.0)
    ends = [partitions_of(stack, number) for number in range(3)]
    rounds, clients_count = 6, 9

    async def produce(number: int) -> None:
        connect = connect_c if in_c else WorkerStack.connect
        mine = [ends[worker][number] for worker in range(3)]
        async with await connect(stack, number % 3) as client:
            me = (await client.get_me()).client.client_id
            for turn in range(rounds):
                partition = mine[(number + turn) % 3]
                await send(client, partition, turn // 3 * MORE, MORE)
            assert (await client.get_me()).client.client_id == me
            for partition in mine:
                assert await payloads(client, partition) == list(range(rounds // 3 * MORE))

    await asyncio.gather(*(produce(number) for number in range(clients_count)))
    assert given(stack) >= clients_count * (rounds - 1)
    await until(lambda: not any(sessions(stack, number) for number in range(3)))
    await until(lambda: not any(w.broker.sessions._away for w in stack.workers.values()))
    for service in stack.workers.values():
        assert service.transports is not None
        statistics = service.transports.tcp.statistics()
        assert (statistics["connections"], statistics["held_bytes"]) == (0, 0)


async def test_a_leader_that_is_gone_is_no_place_to_go(stack: WorkerStack) -> None:
    partition = led_by(stack, 1)
    async with await stack.connect(0) as client:
        await send(client, partition, 0, REQUESTS - 1)
        await stack.stop_worker(1)
        await send(client, partition, REQUESTS - 1, MORE)
        assert await payloads(client, partition) == list(range(REQUESTS - 1 + MORE))


@pytest.mark.parametrize("version", VERSIONS)
async def test_real_clients(stack: WorkerStack, version: str) -> None:
    partition = led_by(stack, 1)
    address = f"127.0.0.1:{port_of(stack, 0)}"
    named = str(partition + 1 if version == "0.5.0" else partition)
    peer = await spawn(version, "exchange.py", address, "s", "t", named)
    await answer(peer)
    texts: list[str] = []
    for number in range(3 * REQUESTS):
        texts.append(f"{version} {number}")
        await order(peer, "send", texts[-1:])
        if not number % 5:
            found = await order(peer, "poll")
            assert [bytes.fromhex(row[0]).decode() for row in found] == texts
    assert given(stack) == 1
    assert len(sessions(stack, 1)) == 1
    await finish(peer)
    await until(lambda: not sessions(stack, 1))


async def test_real_members_of_a_group(stack: WorkerStack) -> None:
    async with await stack.connect(0) as client:
        await client.create_topic("s", "u", partitions_count=5)
        partitions = stack.workers[0].broker.catalogue.topic("s", "u").partitions
        leads = {n: w.worker.shards for n, w in stack.workers.items() if w.worker is not None}
        here = next(n for n, shards in leads.items() if not shards.leads(partitions[0].shard))
        elsewhere = sum(not leads[here].leads(partition.shard) for partition in partitions)
        address = f"127.0.0.1:{port_of(stack, here)}"
        peers = [await spawn(v, "group_member.py", address, "s", "u", "mixed") for v in VERSIONS]
        for member in peers:
            assert await line_of(member) == "joined\n"
        async with asyncio.timeout(60):
            while True:  # some clients join with their first poll
                group = await client.get_group("s", "u", "mixed")
                if group is not None and [len(m.partitions) for m in group.members] == [1] * 5:
                    break
                await asyncio.sleep(0.01)
        await until(lambda: given(stack) == elsewhere)
        for partition in range(5):
            numbers = [Message(b"%d" % (partition * 100 + n)) for n in range(50)]
            await client.send("s", "u", numbers, partitioning=Partitioning.to_partition(partition))
        seen = [[int((await line_of(m)).split()[2]) for _ in range(50)] for m in peers]
        assert sorted(n for numbers in seen for n in numbers) == [
            partition * 100 + n for partition in range(5) for n in range(50)
        ]
        assert await client.get_group("s", "u", "mixed") == group
        for member in peers:
            await finish(member)
