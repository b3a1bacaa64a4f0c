"""The real Python client, apache-iggy 0.8.0, against placement manager, data node and broker.

The scripts in `tests/peers` run under that client's own interpreter; what they check, they check
themselves. Here they are started, and the broker is restarted, attacked and asked what it saw.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.broker.service import BrokerService
from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings
from headrace.config.datanode import StorageSettings
from headrace.errors import HeadraceError, UnavailableError
from headrace.sbp_client.client import SbpClient
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.broker_stack import DEVELOPMENT, SECRET, Stack
from tests.integration.real_clients import (
    end_spawned,
    finish,
    line_of,
    run_peer,
    spawn,
    wait_stored,
)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    running = await Stack(str(tmp_path / "data")).start()
    try:
        yield running
    finally:
        await end_spawned()
        await running.stop()


async def run_080(script: str, *arguments: str) -> str:
    return await run_peer("0.8.0", script, *arguments)


def numbered(first: int, count: int) -> list[Message]:
    return [Message(b"%d" % n) for n in range(first, first + count)]


async def test_everyday_use(stack: Stack) -> None:
    assert "everything held" in await run_080("everyday.py", stack.address)
    assert stack.broker.statistics()["sent_messages"] == 20_040


async def test_group_offsets(stack: Stack) -> None:
    await run_080("group_offsets.py", stack.address)


async def test_token_in_the_connection_string(stack: Stack) -> None:
    client = await stack.connect()
    token = await client.create_token("laptop")
    await run_080("token_login.py", f"iggy+tcp://{token}@{stack.address}")
    assert await client.get_stream("by-token") is not None
    await client.close()


def parse(lines: list[str]) -> list[tuple[int, int, str]]:
    split = [line.split() for line in lines]
    return [(int(partition), int(offset), text) for partition, offset, text in split]


async def wait_shares(client: IggyClient, shares: list[int]) -> None:
    async with asyncio.timeout(60):
        while True:
            group = await client.get_group("s", "t", "workers")
            assert group is not None
            if [len(member.partitions) for member in group.members] == shares:
                return
            await asyncio.sleep(0.01)


async def test_two_members_share_a_group_and_one_takes_over(stack: Stack) -> None:
    client = await stack.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t", partitions_count=4)
    arguments = (stack.address, "s", "t", "workers")
    leaver, stayer = [await spawn("0.8.0", "group_member.py", *arguments) for _ in range(2)]
    for member in (leaver, stayer):
        assert await line_of(member) == "joined\n"
    await wait_shares(client, [2, 2])
    for partition in range(4):
        to = Partitioning.to_partition(partition)
        await client.send("s", "t", numbered(partition * 100, 50), partitioning=to)
    left, stayed = [[await line_of(each) for _ in range(100)] for each in (leaver, stayer)]
    await wait_stored(client, "workers", [49] * 4)
    left += (await finish(leaver)).splitlines()
    await wait_shares(client, [4])
    for partition in range(4):
        to = Partitioning.to_partition(partition)
        await client.send("s", "t", numbered(partition * 100 + 50, 50), partitioning=to)
    stayed += [await line_of(stayer) for _ in range(200)]
    await wait_stored(client, "workers", [99] * 4)
    stayed += (await finish(stayer)).splitlines()
    both = parse(left) + parse(stayed)
    # Each was read by the member that owned its partition; nothing lost, nothing twice.
    assert sorted(int(text) for _, _, text in both) == [
        p * 100 + n for p in range(4) for n in range(100)
    ]
    first_half = [{p for p, o, _ in seen if o < 50} for seen in (parse(left), parse(stayed))]
    assert not first_half[0] & first_half[1]
    assert all(len(partitions) == 2 for partitions in first_half)
    assert {p for p, o, _ in parse(stayed) if o >= 50} == {0, 1, 2, 3}
    await client.close()


async def fill(client: IggyClient) -> None:
    await client.create_stream("s")
    await client.create_topic("s", "t", partitions_count=3)
    for batch in range(30):
        await client.send("s", "t", numbered(batch * 100, 100))
    await client.send("s", "t", [Message(b"k" * 9_000_000)], partitioning=Partitioning.by_key(b"k"))
    await client.store_consumer_offset(Consumer.single(0), "s", "t", partition=1, offset=41)
    await client.create_user("ann", "secret")


@pytest.mark.parametrize("how", ["broker", "everything", "crash"])
async def test_a_restart_keeps_everything_byte_for_byte(tmp_path: Path, how: str) -> None:
    stack = await Stack(str(tmp_path / "data")).start()
    try:
        client = await stack.connect()
        await fill(client)
        await client.close()
        before = await run_080("fingerprint.py", stack.address, "s", "t", "3")
        if how == "broker":
            await stack.stop_broker()
            await stack.start_broker()
        elif how == "everything":
            await stack.stop()
            await stack.start()
        else:
            await crash(stack)
            await stack.start()
        assert await run_080("fingerprint.py", stack.address, "s", "t", "3") == before
        assert before.split()[1] == "3001"
        async with await stack.connect(login=False) as ann:
            await ann.login("ann", "secret")
        client = await stack.connect()
        await client.send("s", "t", numbered(0, 1), partitioning=Partitioning.to_partition(0))
        polled = await client.poll("s", "t", partition=0, strategy=Strategy.last(), count=1)
        assert polled.current_offset == polled.messages()[0].offset
        await client.close()
    finally:
        await stack.stop()


async def crash(stack: Stack) -> None:
    """Nobody finishes anything: no clean-stop marks, no released lease."""
    term = stack.broker.term
    assert term is not None
    await term.broker._tasks.close()
    await term._tasks.close()
    assert term.transports is not None
    await term.transports.close()
    term.leadership.give_up()
    await stack.node.abort()
    await term.broker.close()
    await term.leadership.close()
    await stack.client.close()
    await stack.placement.close()
    await stack.store.close()


async def test_a_clean_restart_goes_on_in_the_same_range(tmp_path: Path) -> None:
    stack = await Stack(str(tmp_path / "data")).start()
    client = await stack.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t")
    await client.send("s", "t", numbered(0, 5))
    ticket = await client.read_ticket([("s", "t")])
    stream_id = ticket.topics[0].partitions[0].sbp_stream
    await client.close()
    await stack.stop()
    await stack.start()
    client = await stack.connect()
    await client.send("s", "t", numbered(5, 5))
    assert len(await stack.client.list_ranges(stream_id)) == 1
    await client.close()
    await stack.stop()


async def test_a_second_broker_waits_and_takes_over(stack: Stack, tmp_path: Path) -> None:
    client = await stack.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t")
    await client.send("s", "t", numbered(0, 3))
    other_client = SbpClient(
        stack.runtime, placement=stack.placement.connect, node=lambda _: stack.node.connect
    )
    standby = BrokerService(
        stack.runtime,
        DEVELOPMENT,
        other_client,
        secret=SECRET,
        cluster_uuid="",
        folder=str(tmp_path / "standby"),
    )
    starting = asyncio.create_task(standby.start("127.0.0.1", 0))
    await asyncio.sleep(0.3)
    assert not starting.done()
    await client.close()
    await stack.broker.close()
    async with asyncio.timeout(10):
        await starting
    host, port = standby.address.split(":")
    async with await IggyClient.connect(stack.runtime, host, int(port)) as client:
        await client.login("iggy", "iggy")
        await client.send("s", "t", numbered(3, 1))
        polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
        assert [m.payload for m in polled.messages()] == [b"0", b"1", b"2", b"3"]
    await standby.close()
    await other_client.close()


async def test_a_broker_whose_lease_is_taken_says_nothing_more(stack: Stack) -> None:
    client = await stack.connect()
    await client.create_stream("s")
    assert stack.broker.term is not None
    leadership = stack.broker.term.leadership
    await stack.client.release("broker", leadership._holder, leadership.epoch)
    await stack.client.lease("broker", "usurper", 60_000)
    async with asyncio.timeout(10):
        await stack.broker.lost.wait()
    with pytest.raises(UnavailableError):
        await client.create_stream("x")
    with pytest.raises(HeadraceError):
        await stack.connect()
    await client.close()


async def test_a_random_root_password_is_told_once(tmp_path: Path) -> None:
    stack = Stack(str(tmp_path / "data"), settings=BrokerSettings())
    await stack.start()
    root = stack.root
    assert root is not None
    assert root.generated
    assert len(root.password) >= 16
    async with await stack.connect(login=False) as client:
        assert await client.login(root.username, root.password) == 0
    stack.root = None
    await stack.stop()
    await stack.start()
    assert stack.root is None
    async with await stack.connect(login=False) as client:
        assert await client.login(root.username, root.password) == 0
    await stack.stop()


GARBAGE = [
    b"",
    b"\x00",
    b"\xff" * 4096,
    struct.pack("<II", 3, 1),
    struct.pack("<II", 0xFFFF_FFFF, 101),
    struct.pack("<II", 200 << 20, 38) + b"x" * 100,
    struct.pack("<II", 8, 99_999) + b"abcd",
    struct.pack("<II", 5, 38) + b"\xff",
    struct.pack("<II", 10, 101) + b"\xff" * 6,
    bytes(512),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
]


async def test_garbage_costs_nobody_else_anything(stack: Stack) -> None:
    client = await stack.connect()
    for data in GARBAGE:
        connection = await stack.runtime.transport.connect("127.0.0.1", stack.port)
        connection.write([data])
        answer = b""
        try:
            async with asyncio.timeout(0.1):
                while part := await connection.receive():
                    answer += part
        except (TimeoutError, UnavailableError):
            pass
        for status, length in struct.iter_unpack("<II", answer):
            assert status != 0, data
            assert length == 0
        connection.close()
        await connection.wait_closed()
        await client.ping()
    await client.create_stream("still here")
    await client.close()


async def test_segments_expire(tmp_path: Path) -> None:
    settings = BrokerSettings(root_username="iggy", root_password="iggy", retention_interval_ms=100)
    storage = StorageSettings(segment_bytes_max=1 << 20)
    stack = await Stack(str(tmp_path / "data"), settings=settings, storage=storage).start()
    client = await stack.connect()
    await client.create_stream("s")
    await client.create_topic("s", "t", message_expiry_us=1)
    for _ in range(5):
        await client.send("s", "t", [Message(b"x" * 400_000)])
    async with asyncio.timeout(10):
        polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
        while polled.messages()[0].offset == 0:
            await asyncio.sleep(0.05)  # the broker works in the background
            polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
    assert polled.messages()[-1].offset == 4
    await client.close()
    await stack.stop()
