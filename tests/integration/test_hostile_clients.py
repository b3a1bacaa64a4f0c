"""Clients that guess passwords, stop half-way or never read: they harm themselves alone."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.classic_frames import encode_request
from headrace.wire.iggy.errors import IggyError, Status
from headrace.wire.iggy.messages.messages import Message, PollMessages
from headrace.wire.iggy.messages.users import LoginUser
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.integration.broker_stack import DEVELOPMENT, Stack
from tests.integration.server import Server, running

MIB = 1 << 20
HELD_MAX = 96 * MIB
SETTINGS = f"""
[advanced.broker]
held_bytes_max = {HELD_MAX}
login_idle_ms = 5000
login_failures_free = 100
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hostile")
    settings = folder / "settings.toml"
    settings.write_text(SETTINGS)
    arguments = ("--dev", "--config", str(settings))
    with running(folder / "server", arguments=arguments) as started:
        yield started


async def connect(server: Server, *, login: bool = True) -> IggyClient:
    address = parse_address(server.addresses["iggy"])
    client = await IggyClient.connect(system_runtime(), *address, timeout=30)
    if login:
        await client.login("iggy", "iggy")
    return client


def raw(server: Server, *, receive_bytes: int = 0) -> socket.socket:
    host, port = parse_address(server.addresses["iggy"])
    connection = socket.socket()
    if receive_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(30)
    connection.connect((host, port))
    return connection


def log_in(connection: socket.socket) -> None:
    request = LoginUser("iggy", "iggy", "0.10.0", "test").encode()
    connection.sendall(b"".join(encode_request(c.LOGIN_USER.code, [request])))
    status, length = struct.unpack("<II", connection.recv(8, socket.MSG_WAITALL))
    assert status == 0
    connection.recv(length, socket.MSG_WAITALL)


def rss(server: Server) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def slow_ping(client: IggyClient, until: asyncio.Event) -> float:
    """What nine of ten took at most: a busy machine may hold up one."""
    times = []
    while not until.is_set():
        started = time.monotonic()
        await client.ping()
        times.append(time.monotonic() - started)
        await asyncio.sleep(0.005)
    return sorted(times)[len(times) * 9 // 10]


async def test_many_logins_at_once_delay_nobody_else(server: Server) -> None:
    """Argon2 runs beside the loop: while forty passwords are checked, others are answered."""
    done = asyncio.Event()
    async with await connect(server) as other:
        watching = asyncio.create_task(slow_ping(other, done))
        clients = [await connect(server, login=False) for _ in range(40)]

        async def attempt(number: int, client: IggyClient) -> int:
            try:
                await client.login(f"guess{number % 4}" if number % 2 else "iggy", "iggy")
            except IggyError as error:
                return error.code
            return 0

        started = time.monotonic()
        outcomes = await asyncio.gather(*(attempt(n, each) for n, each in enumerate(clients)))
        took = time.monotonic() - started
        done.set()
        slow = await watching
        for client in clients:
            await client.close()
    # Twenty were right; of one name and host sixteen may wait, the rest were told to come again.
    assert set(outcomes) <= {0, 42, int(Status.TASK_TIMEOUT)}
    assert outcomes.count(0) >= 16
    assert outcomes.count(42) == 20
    assert took > 0.2, "the passwords were really checked"
    assert slow < max(0.25, took / 4)


async def test_guessing_gets_slower_on_the_wire(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[advanced.broker]\nlogin_failures_free = 2\nlogin_delay_ms_max = 1500\n")
    arguments = ("--dev", "--config", str(settings))
    with running(tmp_path / "server", arguments=arguments) as server:
        async with await connect(server, login=False) as client:
            times = []
            for _ in range(6):
                started = time.monotonic()
                with pytest.raises(IggyError):
                    await client.login("iggy", "wrong")
                times.append(time.monotonic() - started)
            assert times[3] >= 0.19
            assert times[5] >= 0.79
            others = []
            for name in ("somebody", "anybody", "nobody"):
                started = time.monotonic()
                with pytest.raises(IggyError):
                    await client.login(name, "else")
                others.append(time.monotonic() - started)
            assert min(others) < 0.79, "only that name is slowed down"
            await client.login("iggy", "iggy")
        assert server.log.count("headrace.audit") >= 8


async def test_half_sent_frames_and_readers_that_never_read(server: Server) -> None:
    async with await connect(server) as client:
        await client.create_stream("s")
        await client.create_topic("s", "t")
        to = Partitioning.to_partition(0)
        for _ in range(20):
            await client.send("s", "t", [Message(bytes(MIB))], partitioning=to)
        before = rss(server)
        poll = PollMessages(Consumer.single(1), "s", "t", 0, Strategy.first(), 1000, False).encode()
        with ExitStack() as open_:
            for _ in range(50):  # one after the other: a stranger must log in within 2 s
                half = open_.enter_context(raw(server))
                log_in(half)
                half.sendall(struct.pack("<II", 32 * MIB, c.SEND_MESSAGES.code) + bytes(100_000))
            for _ in range(12):
                reader = open_.enter_context(raw(server, receive_bytes=4096))
                log_in(reader)
                reader.sendall(b"".join(encode_request(c.POLL_MESSAGES.code, [poll])))
            started = time.monotonic()
            highest = 0
            while time.monotonic() - started < 4:
                asked = time.monotonic()
                await client.send("s", "t", [Message(b"still here")], partitioning=to)
                polled = await client.poll("s", "t", partition=0, strategy=Strategy.last(), count=1)
                assert polled.messages()[0].payload == b"still here"
                assert time.monotonic() - asked < 15, "memory comes free sooner than by a time-out"
                highest = max(highest, rss(server))
                await asyncio.sleep(0.05)
        # Twelve answers of 16 MiB and fifty started frames would be 200 MiB; 96 were allowed, and
        # what was read from disk for them, once.
        assert highest - before < HELD_MAX + 100 * MIB
        assert "memory is short" in server.log
        await client.send("s", "t", [Message(b"afterwards")], partitioning=to)


async def test_strangers_get_little_memory_and_time(server: Server) -> None:
    with raw(server) as stranger, raw(server) as silent:
        stranger.sendall(struct.pack("<II", 9000, c.SEND_MESSAGES.code) + bytes(9000))
        status, length = struct.unpack("<II", stranger.recv(8, socket.MSG_WAITALL))
        assert (status, length) == (Status.INVALID_COMMAND, 0)
        assert _ended(stranger)
        async with await connect(server) as client:
            silent.sendall(b"\x04")  # and then nothing
            assert _ended(silent), "a half-sent frame of a stranger has no longer than silence"
            await client.ping()  # whoever logged in may be silent


def _ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


async def test_the_connection_limit_is_told_apart_from_a_crash(tmp_path: Path) -> None:
    """Who has not logged in makes room for others; users stay, and then others are refused."""
    settings = tmp_path / "settings.toml"
    settings.write_text("[broker]\nconnections_max = 10\n")
    arguments = ("--dev", "--config", str(settings))
    with running(tmp_path / "server", arguments=arguments) as server:
        strangers, users = list[IggyClient](), list[IggyClient]()
        for _ in range(20):
            strangers.append(await connect(server, login=False))
            await strangers[-1].ping()
        refused: HeadraceError | None = None
        while refused is None:
            assert len(users) <= 10
            client = await connect(server, login=False)
            users.append(client)
            try:
                await client.login("iggy", "iggy")
            except HeadraceError as error:
                refused = error
        for client in users[:-1]:
            await client.ping()
        for client in (*strangers, *users):
            await client.close()
        async with await connect(server) as client:
            await client.ping()
        assert "all connections are taken" in server.log


async def test_a_broker_that_stood_still_for_longer_than_its_lease_goes_on(tmp_path: Path) -> None:
    """On one machine nobody else can have led meanwhile."""
    settings = msgspec.structs.replace(DEVELOPMENT, lease_ms=600)
    stack = await Stack(str(tmp_path), settings).start()
    client = await stack.connect()
    epoch = stack.broker.statistics()["epoch"]
    time.sleep(1.2)  # noqa: ASYNC251  # the whole process stands still
    await client.ping()
    assert stack.broker.leads
    assert not stack.broker.lost.is_set()
    assert stack.broker.statistics()["epoch"] == epoch
    await client.close()
    await stack.stop()
