"""The Iggy client: every command, deadlines, broken connections (simulated); the blocking face."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.client.iggy import IggyClient
from headrace.client.sync import SyncIggyClient
from headrace.errors import (
    AlreadyExistsError,
    DeadlineError,
    LocalProtocolError,
    RemoteProtocolError,
    UnavailableError,
)
from headrace.net.iggy_server import Answer, IggyServer
from headrace.runtime import Runtime
from headrace.runtime.interfaces import Connection
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.commands import SERVED, TABLE
from headrace.wire.iggy.errors import DecodeError, IggyError, Status
from headrace.wire.iggy.messages.extensions import PublisherOpened, StagedSpan
from headrace.wire.iggy.messages.messages import Message, PolledMessages, SendMessages, encode_send
from headrace.wire.iggy.messages.system import SnapshotType
from headrace.wire.iggy.messages.topics import Compression
from headrace.wire.iggy.messages.users import Permissions, UserStatus
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.simulator.runtime import Simulation
from tests.unit.wire.iggy.test_responses import CASES

PORT = 8090
REPLIES = {command.code: reply for command, reply, _ in CASES}
ME = Consumer.single("me")
PUBLISHER = PublisherOpened(publisher=3, epoch=2)
SPAN = StagedSpan(40, 2, 7, 1, 0)


class FakeServer:
    """Decodes every request by the table and gives the reply of the response tests."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.seen: list[tuple[int, Any]] = []
        self.connections = 0
        self.statuses: dict[int, int] = {}
        self.missing: set[int] = set()
        self.delay_seconds = 0.0
        self.server: IggyServer[None] = IggyServer(
            runtime,
            open_session=self._open,
            on_request=self.on_request,
            close_session=lambda session: None,
        )

    def _open(self, connection: object) -> None:
        self.connections += 1

    async def on_request(
        self, session: None, code: int, payload: memoryview, head: object = None
    ) -> Answer:
        row = TABLE[code]
        self.seen.append((code, row.decode_request(payload)))
        if self.delay_seconds:
            await self.runtime.clock.sleep(self.delay_seconds)
        if code in self.statuses:
            return self.statuses[code], ()
        if code == 100:
            sent = encode_send("s", "t", Partitioning.balanced(), [Message(b"a"), Message(b"b")])
            return 0, PolledMessages(1, 9, 2, (sent.area,)).pieces()
        reply = None if code in self.missing else REPLIES.get(code)
        return 0, row.encode_response(reply) if reply is not None else ()


Scenario = Callable[[IggyClient, FakeServer], Awaitable[None]]


def run(scenario: Scenario, *, timeout: float = 10.0) -> FakeServer:
    simulation = Simulation(3)
    fake = FakeServer(simulation.runtime("broker"))

    async def main() -> None:
        await simulation.on("broker", fake.server.start("broker", PORT))
        runtime = simulation.runtime("client")
        async with await IggyClient.connect(runtime, "broker", PORT, timeout=timeout) as client:
            await scenario(client, fake)
        await simulation.on("broker", fake.server.close())

    simulation.run(main())
    return fake


def batch() -> SendMessages:
    return encode_send("s", "t", Partitioning.to_partition(2), [Message(b"x")])


# One call per command, in the order of the table; with what it must return.
CALLS: list[tuple[int, Callable[[IggyClient], Awaitable[object]], object]] = [
    (1, lambda c: c.ping(), None),
    (10, lambda c: c.get_stats(), REPLIES[10]),
    (11, lambda c: c.get_snapshot([SnapshotType.TEST]), b"PK\x03\x04"),
    (12, lambda c: c.get_cluster_metadata(), REPLIES[12]),
    (20, lambda c: c.get_me(), REPLIES[20]),
    (21, lambda c: c.get_client(5), REPLIES[21]),
    (22, lambda c: c.get_clients(), REPLIES[22].clients),  # type: ignore[attr-defined]
    (31, lambda c: c.get_user("bob"), REPLIES[31]),
    (32, lambda c: c.get_users(), REPLIES[32].users),  # type: ignore[attr-defined]
    (33, lambda c: c.create_user("bob", "pw", permissions=Permissions()), REPLIES[33]),
    (34, lambda c: c.delete_user("bob"), None),
    (35, lambda c: c.update_user("bob", status=UserStatus.INACTIVE), None),
    (36, lambda c: c.update_permissions("bob", None), None),
    (37, lambda c: c.change_password("bob", current="a", new="b"), None),
    (38, lambda c: c.login("iggy", "iggy"), 5),
    (39, lambda c: c.logout(), None),
    (41, lambda c: c.get_tokens(), REPLIES[41].tokens),  # type: ignore[attr-defined]
    (42, lambda c: c.create_token("tok"), "abc"),
    (43, lambda c: c.delete_token("tok"), None),
    (44, lambda c: c.login_with_token("abc"), 5),
    (9009, lambda c: c.present_grant(b"grant"), None),
    (9010, lambda c: c.speak_for("10.0.0.1", "token"), None),
    (101, lambda c: c.send("s", "t", [Message(b"x")]), None),
    (101, lambda c: c.send_batch(batch()), None),
    (102, lambda c: c.flush("s", "t", partition=0), None),
    (120, lambda c: c.get_consumer_offset(ME, "s", "t", 1), REPLIES[120]),
    (121, lambda c: c.store_consumer_offset(ME, "s", "t", offset=7), None),
    (122, lambda c: c.delete_consumer_offset(ME, "s", "t", 1), None),
    (200, lambda c: c.get_stream("s"), REPLIES[200]),
    (201, lambda c: c.get_streams(), REPLIES[201].streams),  # type: ignore[attr-defined]
    (202, lambda c: c.create_stream("s"), REPLIES[202]),
    (203, lambda c: c.delete_stream("s"), None),
    (204, lambda c: c.update_stream("s", "new"), None),
    (205, lambda c: c.purge_stream("s"), None),
    (300, lambda c: c.get_topic("s", "t"), REPLIES[300]),
    (301, lambda c: c.get_topics("s"), REPLIES[301].topics),  # type: ignore[attr-defined]
    (302, lambda c: c.create_topic("s", "t", partitions_count=3), REPLIES[302]),
    (303, lambda c: c.delete_topic("s", "t"), None),
    (304, lambda c: c.update_topic("s", "t", "new", compression=Compression.GZIP), None),
    (305, lambda c: c.purge_topic("s", "t"), None),
    (402, lambda c: c.create_partitions("s", "t", 2), None),
    (403, lambda c: c.delete_partitions("s", "t", 2), None),
    (503, lambda c: c.delete_segments("s", "t", partition=1, count=2), None),
    (600, lambda c: c.get_group("s", "t", "g"), REPLIES[600]),
    (601, lambda c: c.get_groups("s", "t"), REPLIES[601].groups),  # type: ignore[attr-defined]
    (602, lambda c: c.create_group("s", "t", "g"), REPLIES[602]),
    (603, lambda c: c.delete_group("s", "t", "g"), None),
    (604, lambda c: c.join_group("s", "t", "g"), None),
    (605, lambda c: c.leave_group("s", "t", "g"), None),
    (9000, lambda c: c.hello(), REPLIES[9000]),
    (9001, lambda c: c.open_publisher("query", "7"), REPLIES[9001]),
    (9002, lambda c: c.stage(PUBLISHER, 5, batch()), SPAN),
    (
        9003,
        lambda c: c.close_window(PUBLISHER, previous=4, window=5, manifest=[SPAN]),
        REPLIES[9003],
    ),
    (9004, lambda c: c.list_windows("s", "t", after=3, wait_ms=5), REPLIES[9004]),
    (9005, lambda c: c.set_publishers("s", "t", ["a"], after=3), None),
    (9006, lambda c: c.reset_after("s", "t", window=3, epoch=2), None),
    (9007, lambda c: c.purge_to("s", "t", window=3), None),
    (9008, lambda c: c.read_ticket([("s", "t"), (0, 1)]), REPLIES[9008]),
    (9011, lambda c: c.get_publishing(), REPLIES[9011]),
    (9012, lambda c: c.get_shards(), REPLIES[9012]),
    (9013, lambda c: c.move_shard(5, "2"), REPLIES[9013]),
]


def test_every_served_command_has_a_method() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        for code, call, expected in CALLS:
            assert await call(client) == expected, code
        polled = await client.poll("s", "t", partition=1, strategy=Strategy.offset(4), count=2)
        assert [message.payload for message in polled.messages()] == [b"a", b"b"]
        assert (polled.partition, polled.current_offset) == (1, 9)

    fake = run(scenario)
    expected = [*(code for code, _, _ in CALLS), 100]
    expected.insert(expected.index(44), 9000)  # before a token, a word that tells our dialect
    assert [code for code, _ in fake.seen] == expected
    assert {code for code, _ in fake.seen} == {
        code for code, row in SERVED.items() if not row.only_c
    }


def test_arguments_reach_the_server() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        await client.store_consumer_offset(Consumer.group("g"), "s", 4, offset=7, partition=2)
        await client.create_topic(0, "t", partitions_count=3, max_size_bytes=10)
        await client.poll("s", "t", consumer=ME, count=5, auto_commit=True)
        await client.send("s", "t", [Message(b"x"), Message(b"y", origin_timestamp_us=5)])

    stored, topic, poll, send = (request for _, request in run(scenario).seen)
    assert (stored.consumer, stored.stream, stored.topic) == (Consumer.group("g"), "s", 4)
    assert (stored.partition, stored.offset) == (2, 7)
    assert (topic.stream, topic.name, topic.partitions_count) == (0, "t", 3)
    assert topic.max_size_bytes == 10
    assert (poll.consumer, poll.count, poll.auto_commit) == (ME, 5, True)
    assert poll.strategy == Strategy.next()
    times = [int.from_bytes(send.area[at + 40 : at + 48], "little") for at in send.starts]
    assert times[0] > 1_600_000_000_000_000
    assert times[1] == 5


def test_missing_things_are_none() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        assert await client.get_stream("s") is not None
        for code in (21, 31, 120, 200, 300, 600):
            fake.missing.add(code)
            (call,) = [call for number, call, _ in CALLS if number == code]
            assert await call(client) is None

    run(scenario)


def test_refusals_are_errors_of_the_taxonomy_and_leave_the_connection_usable() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.statuses[202] = Status.STREAM_NAME_ALREADY_EXISTS
        with pytest.raises(AlreadyExistsError) as caught:
            await client.create_stream("s")
        assert isinstance(caught.value, IggyError)
        assert caught.value.code == 1012
        assert (caught.value.command, str(caught.value)) == (
            "CREATE_STREAM", "there is a stream 's' already",
        )  # fmt: skip
        await client.ping()
        assert client.usable

    run(scenario)


def test_only_invalid_command_means_a_plain_server() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.statuses[9000] = Status.INVALID_COMMAND
        assert await client.hello() is None
        fake.statuses[9000] = Status.UNAUTHENTICATED
        with pytest.raises(IggyError):
            await client.hello()

    run(scenario)


def test_callers_queue_for_their_turn() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.delay_seconds = 0.1
        got = await asyncio.gather(client.get_streams(), client.get_user(1), client.login("u", "p"))
        assert got[0] == REPLIES[201].streams  # type: ignore[attr-defined]
        assert got[1] == REPLIES[31]
        assert got[2] == 5

    assert [code for code, _ in run(scenario).seen] == [201, 31, 38]


def test_after_a_deadline_the_connection_is_over() -> None:
    """A late reply would be taken for the next request's."""

    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.delay_seconds = 5.0
        with pytest.raises(DeadlineError):
            await client.get_streams()
        assert not client.usable
        with pytest.raises(UnavailableError):
            await client.ping()

    assert [code for code, _ in run(scenario, timeout=1.0).seen] == [201]


def test_a_deadline_per_call() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.delay_seconds = 2.0
        await client.poll("s", "t", timeout=5.0)
        with pytest.raises(DeadlineError):
            await client.poll("s", "t", timeout=1.0)

    run(scenario)


def test_waiting_for_a_turn_counts_but_breaks_nothing() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.delay_seconds = 2.0
        slow = asyncio.ensure_future(client.poll("s", "t"))
        await fake.runtime.clock.sleep(0.1)
        ping = client.poll("s", "t", timeout=1.0)
        with pytest.raises(DeadlineError):
            await ping
        assert (await slow).count == 2
        assert client.usable

    run(scenario)


def test_a_cancelled_request_ends_the_connection() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.delay_seconds = 2.0
        waiting = asyncio.ensure_future(client.ping())
        await fake.runtime.clock.sleep(1.0)
        waiting.cancel()
        await asyncio.wait([waiting])
        with pytest.raises(UnavailableError):
            await client.get_me()

    run(scenario)


def test_a_server_that_goes_away() -> None:
    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.statuses[1] = Status.STALE_CLIENT
        with pytest.raises(UnavailableError):
            await client.ping()  # the answer itself
        with pytest.raises(UnavailableError):
            await client.get_me()  # the closed connection
        assert not client.usable

    run(scenario)


def test_an_undecodable_reply_is_the_servers_fault() -> None:
    async def broken(session: None, code: int, payload: memoryview, head: object) -> Answer:
        return 0, [b"\xff\xff"]

    async def scenario(client: IggyClient, fake: FakeServer) -> None:
        fake.server._on_request = broken
        with pytest.raises(DecodeError):
            await client.get_stats()

    run(scenario)


@pytest.mark.parametrize("surplus", [bytes(8), bytes(3)])
def test_a_reply_to_no_request_ends_the_connection(surplus: bytes) -> None:
    simulation = Simulation(4)

    async def talkative(connection: Connection) -> None:
        await connection.receive()
        connection.write([bytes(8) + surplus])
        await connection.receive()

    async def main() -> None:
        runtime = simulation.runtime("broker")
        listener = await simulation.on(
            "broker", runtime.transport.listen("broker", PORT, talkative)
        )
        client = await IggyClient.connect(simulation.runtime("client"), "broker", PORT)
        with pytest.raises(RemoteProtocolError):
            await client.ping()
        assert not client.usable
        await client.close()
        listener.close()

    simulation.run(main())


# --- the blocking face --------------------------------------------------------------------------


@contextmanager
def real_server() -> Iterator[tuple[FakeServer, int]]:
    """A server on loopback, in a thread of its own."""
    loop = asyncio.new_event_loop()
    fake = FakeServer(system_runtime())
    started = threading.Event()
    stopped = asyncio.Event()

    async def serve() -> None:
        await fake.server.start("127.0.0.1", 0)
        started.set()
        await stopped.wait()
        await fake.server.close()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert started.wait(10)
        yield fake, fake.server.listener.port
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(10)
        loop.close()


def test_sync_connects_and_logs_in_at_the_first_call() -> None:
    with (
        real_server() as (fake, port),
        SyncIggyClient("127.0.0.1", port, username="u", password="p") as sync,
    ):
        assert fake.connections == 0
        assert sync.get_topic("s", "t") == REPLIES[300]
        assert sync.hello() == REPLIES[9000]
        assert sync.read_ticket([("s", "t")]) == REPLIES[9008]
        sync.send("s", "t", [Message(b"x")])
        sync.send_batch(batch())
        assert len(sync.poll("s", "t").messages()) == 2
        assert sync.run(lambda client: client.get_users()) == REPLIES[32].users  # type: ignore[attr-defined]
        assert [code for code, _ in fake.seen] == [38, 300, 9000, 9008, 101, 101, 100, 32]
        assert fake.connections == 1


def test_sync_connects_again_after_close() -> None:
    with real_server() as (fake, port):
        sync = SyncIggyClient("127.0.0.1", port, token="abc")
        sync.hello()
        sync.close()
        sync.close()
        sync.hello()
        sync.close()
        assert [code for code, _ in fake.seen] == [9000, 44, 9000] * 2
        assert fake.connections == 2


def test_sync_reports_a_failed_login_and_tries_it_again() -> None:
    with (
        real_server() as (fake, port),
        SyncIggyClient("127.0.0.1", port, username="u", password="p") as sync,
    ):
        fake.statuses[38] = Status.INVALID_CREDENTIALS
        with pytest.raises(IggyError):
            sync.hello()
        del fake.statuses[38]
        assert sync.hello() == REPLIES[9000]


def test_sync_starts_over_in_a_forked_process() -> None:
    with real_server() as (fake, port), SyncIggyClient("127.0.0.1", port) as sync:
        sync.hello()
        child = os.fork()
        if child == 0:  # pragma: no cover  # the other process
            ok = sync.hello() == REPLIES[9000]
            os._exit(0 if ok else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert sync.hello() == REPLIES[9000]  # the parent's connection was not disturbed
        assert fake.connections == 2
        assert [code for code, _ in fake.seen] == [9000, 9000, 9000]


async def test_sync_is_refused_inside_a_running_loop() -> None:
    with pytest.raises(LocalProtocolError):
        SyncIggyClient("127.0.0.1", 1).hello()
