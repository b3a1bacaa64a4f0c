"""Brokers that stand by: their connections lead to whoever leads, and one of them takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from headrace.broker.service import BrokerService
from headrace.broker.term.standby_listener import StandbyListener
from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.errors import ConfigError, HeadraceError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.runtime.interfaces import Connection
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.system import Empty, NodeRole
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.vsr.client import Conversation
from tests.integration.broker_stack import DEVELOPMENT, SECRET, Stack
from tests.integration.server import PEERS, ROOT

SECONDS = 20.0


async def eventually(check: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while True:
            found = check()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


async def ends(connection: Connection) -> bool:
    """Whether it is over, in order or not; waits for that or for bytes."""
    try:
        return not await connection.receive()
    except UnavailableError:
        return True


@asynccontextmanager
async def broker_of(stack: Stack, folder: Path) -> AsyncIterator[BrokerService]:
    """One more broker of the stack's cluster."""
    client = SbpClient(
        stack.runtime, placement=stack.placement.connect, node=lambda _: stack.node.connect
    )
    service = BrokerService(
        stack.runtime,
        DEVELOPMENT,
        client,
        secret=SECRET,
        cluster_uuid="",
        folder=str(folder),
        stands_by=True,
    )
    await service.start("127.0.0.1", 0)
    try:
        yield service
    finally:
        await service.close()
        await client.close()


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """Without its own broker: those of the tests stand by."""
    stack = await Stack(str(tmp_path / "data")).start()
    await stack.stop_broker()
    yield stack
    await stack.node.close()
    await stack.placement.close()
    await stack.store.close()


@asynccontextmanager
async def pair(stack: Stack, tmp_path: Path) -> AsyncIterator[tuple[BrokerService, BrokerService]]:
    """One that leads and one that stands by."""
    async with broker_of(stack, tmp_path / "one") as one:
        await leads(one)
        async with broker_of(stack, tmp_path / "two") as two:
            async with await connected(one) as client:

                async def both_listed() -> bool:
                    told = await client.call(c.GET_CLUSTER_METADATA, Empty())
                    return len(told.nodes) == 2

                await eventually(both_listed)
            yield one, two


async def leads(service: BrokerService) -> None:
    """Until it serves."""
    await eventually(lambda: service.leads)
    async with await connected(service):
        return


async def connected(service: BrokerService) -> IggyClient:
    client = await IggyClient.connect(system_runtime(), *parse_address(service.address))
    await client.login("iggy", "iggy")
    return client


async def alone(client: IggyClient) -> bool:
    return len((await client.call(c.GET_CLUSTER_METADATA, Empty())).nodes) == 1


def relays(service: BrokerService) -> object:
    return service.statistics()["relayed_connections"]


async def test_work_through_the_one_that_stands_by(stack: Stack, tmp_path: Path) -> None:
    async with pair(stack, tmp_path) as (one, two):
        assert (one.leads, two.leads) == (True, False)
        async with await connected(two) as client:
            assert relays(two) == 1
            await client.create_stream("s")
            await client.create_topic("s", "t")
            large = b"x" * 3_000_000
            await client.send("s", "t", [Message(payload=large)])
            polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
            assert [message.payload for message in polled.messages()] == [large]
            told = await client.call(c.GET_CLUSTER_METADATA, Empty())
            assert {(f"{n.ip}:{n.tcp_port}", n.role) for n in told.nodes} == {
                (one.address, NodeRole.LEADER),
                (two.address, NodeRole.FOLLOWER),
            }
        await eventually(lambda: relays(two) == 0)


@pytest.mark.parametrize(
    ("version", "stays"), [("0.5.0", 1), ("0.6.0", 0), ("0.7.0", 0), ("0.8.0", 0), ("0.9.0", 0)]
)
async def test_clients_that_can_go_to_the_leader(
    stack: Stack, tmp_path: Path, version: str, stays: int
) -> None:
    """Those that ask for the cluster's metadata leave for the leader; the oldest stays."""
    async with pair(stack, tmp_path) as (one, two):
        peer = await asyncio.create_subprocess_exec(
            str(ROOT / f".venv/peers/iggy-{version}/bin/python"),
            str(PEERS / "run.py"),
            str(PEERS / "logged_in.py"),
            two.address,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert peer.stdin is not None
        assert peer.stdout is not None
        async with asyncio.timeout(SECONDS):
            assert await peer.stdout.readline() == b"logged in\n"
            await eventually(lambda: relays(two) == stays and one.statistics()["clients"] == 1)
            peer.stdin.close()
            assert await peer.wait() == 0


async def test_the_other_takes_over_and_back(stack: Stack, tmp_path: Path) -> None:
    async with AsyncExitStack() as later:
        async with broker_of(stack, tmp_path / "two") as two:
            await leads(two)
            assert two.term is not None
            epoch = two.term.leadership.epoch
            one = await later.enter_async_context(broker_of(stack, tmp_path / "one"))
            through = await later.enter_async_context(await connected(one))
            await through.create_stream("s")
        await leads(one)
        async with await connected(one) as client:
            await eventually(lambda: alone(client))
        assert one.term is not None
        assert one.term.leadership.epoch == epoch + 1
        with pytest.raises(UnavailableError):
            await through.get_streams()
        async with broker_of(stack, tmp_path / "two") as two:
            async with await connected(two) as client:
                assert [stream.name for stream in await client.get_streams()] == ["s"]
            one.term.end()  # its own lease it gets again at once, for another term
            await eventually(lambda: one.leads and one.statistics()["epoch"] == epoch + 2)
            async with await connected(two) as client:
                assert [stream.name for stream in await client.get_streams()] == ["s"]


async def test_a_request_sent_again_to_the_next_leader(stack: Stack, tmp_path: Path) -> None:
    """Dialect C: its answer was lost with the leader that applied it."""
    talk = Conversation(b"c" * 16)

    async def connect(service: BrokerService) -> IggyClient:
        place = parse_address(service.address)
        client = await IggyClient.connect(system_runtime(), *place, conversation=talk)
        await client.login("iggy", "iggy")
        return client

    first = Partitioning.to_partition(0)
    async with AsyncExitStack() as later:
        async with broker_of(stack, tmp_path / "two") as two:
            await leads(two)
            one = await later.enter_async_context(broker_of(stack, tmp_path / "one"))
            client = await connect(one)  # which passes it on
            await client.create_stream("s")
            await client.create_topic("s", "t", partitions_count=1)
            for n in range(5):
                await client.send("s", "t", [Message(b"%d" % n, id=n + 1)], partitioning=first)
            await client.close()
        await leads(one)
        async with await connect(one) as client:
            sent = await client.again(c.SEND_MESSAGES)
            assert sent.placed[0].base_offset == 4
            await client.send("s", "t", [Message(b"5", id=6)], partitioning=first)
            found = (await client.poll("s", "t", partition=0, count=10)).messages()
            assert [message.payload for message in found] == [b"%d" % n for n in range(6)]
            await client.create_partitions("s", "t", 2)
        assert one.term is not None
        epoch = one.term.leadership.epoch
        one.term.end()
        await eventually(lambda: one.leads and one.statistics()["epoch"] == epoch + 1)
        async with await connect(one) as client:
            await client.again(c.CREATE_PARTITIONS)
            details = await client.get_topic("s", "t")
            assert details is not None
            assert len(details.partitions) == 3


async def test_one_that_lost_its_lease_answers_nobody(stack: Stack, tmp_path: Path) -> None:
    async with broker_of(stack, tmp_path / "one") as one:
        await leads(one)
        client = await connected(one)
        assert one.term is not None
        leadership = one.term.leadership
        control = SbpClient(
            stack.runtime, placement=stack.placement.connect, node=lambda _: stack.node.connect
        )
        await control.release("broker", leadership._holder, leadership.epoch)
        await control.lease("broker", "usurper", 60_000, "127.0.0.1:1")
        await control.close()
        await eventually(lambda: not one.leads)
        with pytest.raises(HeadraceError):
            await client.create_stream("x")
        await client.close()
        assert not one.lost.is_set(), "it stands by"


async def test_one_that_can_never_lead_says_why(stack: Stack, tmp_path: Path) -> None:
    client = SbpClient(
        stack.runtime, placement=stack.placement.connect, node=lambda _: stack.node.connect
    )
    for name in ("s/catalogue", "s/offsets"):  # no users any more: root has to be made
        await client.delete_stream((await client.create_stream(name=name)).stream_id)
    service = BrokerService(
        stack.runtime,
        BrokerSettings(root_username="iggy", root_password="x"),
        client,
        secret=SECRET,
        cluster_uuid="",
        folder=str(tmp_path / "bad"),
        stands_by=True,
    )
    await service.start("127.0.0.1", 0)
    async with asyncio.timeout(SECONDS):
        await service.lost.wait()
    assert isinstance(service.failure, ConfigError)
    assert "root user" in str(service.failure)
    await service.close()
    await client.close()


# -- the standby


class Leader:
    """Says who leads; "" while nobody does."""

    def __init__(self) -> None:
        self.address = ""
        self.asked = 0
        self.away = False

    async def find(self) -> str:
        self.asked += 1
        if self.away:
            raise UnavailableError("placement manager away")
        return self.address


@asynccontextmanager
async def open_standby(leader: Leader, **options: float) -> AsyncIterator[StandbyListener]:
    standby = StandbyListener(
        system_runtime(),
        find_leader=leader.find,
        wait_seconds=options.get("wait_seconds", SECONDS),
        guests_max=int(options.get("guests_max", 10)),
    )
    await standby.start("127.0.0.1", 0)
    try:
        yield standby
    finally:
        await standby.close()


async def echo(connection: Connection) -> None:
    while data := await connection.receive():
        connection.write((b"echo " + data,))
        await connection.drain()


@asynccontextmanager
async def knock(standby: StandbyListener) -> AsyncIterator[Connection]:
    connection = await system_runtime().transport.connect("127.0.0.1", standby.listener.port)
    connection.write((b"hello",))
    try:
        yield connection
    finally:
        connection.close()
        await connection.wait_closed()


async def test_connections_wait_for_somebody_to_lead() -> None:
    leader = Leader()
    async with (
        asyncio.timeout(SECONDS),
        open_standby(leader) as standby,
        knock(standby) as connection,
    ):
        await eventually(lambda: leader.asked > 0)
        leader.away = True
        asked = leader.asked
        await eventually(lambda: leader.asked > asked)
        standby.serve_here(echo)
        assert await connection.receive() == b"echo hello"


async def test_connections_end_when_nobody_leads_for_long() -> None:
    async with (
        asyncio.timeout(SECONDS),
        open_standby(Leader(), wait_seconds=0.2) as standby,
        knock(standby) as connection,
    ):
        assert await ends(connection)


async def test_many_that_wait_ask_as_one() -> None:
    leader = Leader()
    async with asyncio.timeout(SECONDS), AsyncExitStack() as opened:
        other = await opened.enter_async_context(open_standby(Leader()))
        other.serve_here(echo)
        standby = await opened.enter_async_context(open_standby(leader, guests_max=20))
        waiting = [await opened.enter_async_context(knock(standby)) for _ in range(20)]
        asked = leader.asked
        await asyncio.sleep(0.5)
        assert leader.asked - asked <= 10, "not each for itself"
        await eventually(lambda: leader.asked > asked)
        await eventually(lambda: standby.statistics()["waiting_connections"] == 20)
        async with knock(standby) as one_more:
            assert await ends(one_more)
        leader.address = other.address
        for connection in waiting:
            assert await connection.receive() == b"echo hello"
        assert standby.statistics()["relayed_connections"] == 20


async def test_relays_end_with_what_they_lead_to() -> None:
    here = Leader()
    async with (
        asyncio.timeout(SECONDS),
        open_standby(Leader()) as other,
        open_standby(here, guests_max=1) as standby,
    ):
        other.serve_here(echo)
        here.address = other.address
        async with knock(standby) as first:
            assert await first.receive() == b"echo hello"
            async with knock(standby) as second:
                assert await ends(second), "too many"
            standby.end_relays(but_to=other.address)
            first.write((b"again",))
            assert await first.receive() == b"echo again"
            standby.end_relays(but_to="somebody:1")
            assert await ends(first)


async def test_a_leader_that_is_not_there_is_asked_for_again() -> None:
    here = Leader()
    async with (
        asyncio.timeout(SECONDS),
        open_standby(Leader()) as other,
        open_standby(here) as standby,
    ):
        other.serve_here(echo)
        here.address = "127.0.0.1:1"
        async with knock(standby) as connection:
            await eventually(lambda: here.asked > 2)
            here.address = other.address
            assert await connection.receive() == b"echo hello"
