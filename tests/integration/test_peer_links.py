"""Links between real processes: connections that move, TLS between machines, and a killed peer."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.errors import OutcomeUnknownError, UnavailableError
from headrace.net.peer_link import PeerLink, TcpAddress, UnixAddress
from headrace.net.peer_server import Answer, PeerServer
from headrace.net.tls import ClientTls, TlsAcceptor
from headrace.runtime.system import run, system_runtime
from tests.integration.moving_process import REQUEST_BYTES, RUN, SECRET
from tests.unit.net.certificates import contexts

MOVES = 100


@contextmanager
def moving_process(
    folder: Path, name: str, other: str
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.moving_process", str(folder), name, other],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline()), process
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_connection_moves_a_hundred_times_and_loses_nothing(tmp_path: Path) -> None:
    requests = b"".join(b"%08d" % number for number in range((MOVES + 1) * RUN))
    with (
        moving_process(tmp_path, "a", "b") as (port, _),
        moving_process(tmp_path, "b", "a"),
        socket.create_connection(("127.0.0.1", port), timeout=30) as client,
    ):
        sender = threading.Thread(target=send_in_odd_pieces, args=(client, requests))
        sender.start()
        wanted = len(requests) // REQUEST_BYTES * (REQUEST_BYTES + 1)
        received = bytearray()
        while len(received) < wanted:
            data = client.recv(1 << 16)
            assert data, f"ended after {len(received)} of {wanted} bytes"
            received += data
        sender.join()
        expected = b"".join(
            b"%08d%c" % (number, b"ab"[number // RUN % 2]) for number in range((MOVES + 1) * RUN)
        )
        assert received == expected
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b"", "and nothing comes twice"


def send_in_odd_pieces(client: socket.socket, requests: bytes) -> None:
    position = 0
    while position < len(requests):
        size = 1 + position % 97
        client.sendall(requests[position : position + size])
        position += size


def test_a_killed_peer_is_noticed_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        with moving_process(tmp_path, "a", "b") as (_, process):
            lost = asyncio.Event()
            link = PeerLink(
                system_runtime(),
                secret=SECRET,
                name="test",
                address=UnixAddress(f"{tmp_path}/a"),
                expected="a",
                on_unlinked=lost.set,
            )
            assert bytes((await link.call(b"", [b"x"], timeout=5))[1]) == b"x"
            process.kill()
            async with asyncio.timeout(1):
                await lost.wait()
            with pytest.raises(UnavailableError):
                await link.call(b"", timeout=5)
            await link.close()

    run(main())


def test_calls_over_tcp_and_tls(tmp_path: Path) -> None:
    held = asyncio.Event()

    async def on_request(name: str, head: bytes, body: memoryview) -> Answer:
        if head == b"hold":
            await held.wait()
        return head, [body]

    async def main() -> None:
        runtime = system_runtime()
        server = PeerServer(runtime, secret=SECRET, name="far", on_request=on_request)
        serving, trusting = contexts()
        acceptor = TlsAcceptor(serving, required=True)
        secured = await server.start_tcp("127.0.0.1", 0, acceptor)
        plain = await server.start_tcp("127.0.0.1", 0)
        body = bytes(range(256)) * 40_000
        tls = ClientTls(context=trusting, server_name="localhost")
        for address in (
            TcpAddress("127.0.0.1", plain.port),
            TcpAddress("127.0.0.1", secured.port, tls),
        ):
            link = PeerLink(runtime, secret=SECRET, name="near", address=address)
            answers = await asyncio.gather(
                *(link.call(b"%d" % number, [body], timeout=30) for number in range(8))
            )
            assert [head for head, _ in answers] == [b"%d" % number for number in range(8)]
            assert all(bytes(found) == body for _, found in answers)
            waiting = asyncio.ensure_future(link.call(b"hold", timeout=30))
            await link.call(b"", timeout=30)
            await link.close()
            with pytest.raises(OutcomeUnknownError):
                await waiting
        unsecured = PeerLink(
            runtime, secret=SECRET, name="near", address=TcpAddress("127.0.0.1", secured.port)
        )
        with pytest.raises(UnavailableError):
            await unsecured.call(b"", timeout=30)
        await unsecured.close()
        held.set()
        await server.close()

    run(main())
