"""TCP, TLS on the same port and QUIC, all at once, on real sockets."""

from __future__ import annotations

import asyncio
import ssl
import stat
import struct
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from headrace.client.iggy import IggyClient
from headrace.config.broker import BrokerSettings, QuicSettings
from headrace.config.process import TlsSettings
from headrace.config.settings import Settings
from headrace.errors import ConfigError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.net.tls import ClientTls
from headrace.process.data_plane import DataPlane
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.runtime.system import system_runtime
from headrace.runtime.system.tls import client_context
from headrace.wire.iggy.commands import Command, Encodable
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import Status, error_of
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.system import TransportKind
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.integration.server import PEERS, ROOT, running
from tests.quic_client import QuicClient

Q = TypeVar("Q", bound=Encodable)
R = TypeVar("R")

BROKER = BrokerSettings(root_username="iggy", root_password="iggy")
FIRST = Partitioning.to_partition(0)
REAL_CLIENTS = ("0.6.0", "0.7.0", "0.8.0", "0.9.0")  # 0.5.0 has no way to ask for TLS


def settings_of(
    folder: Path,
    tls: TlsSettings | None = None,
    quic: QuicSettings | None = None,
    quic_port: int = 0,
) -> Settings:
    return Settings(
        data_dir=str(folder / "data"),
        iggy_port=0,
        quic_port=quic_port,
        placement_port=0,
        node_port=0,
        broker=BROKER,
        tls=tls or TlsSettings(),
        quic=quic or QuicSettings(),
    )


class StandardTls:
    """A Connection by the standard library's own TLS client, which shares no code with ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.peer = self.local = ""
        self._reader, self._writer = reader, writer

    @property
    def version(self) -> str:
        version: str = self._writer.get_extra_info("ssl_object").version()
        return version

    async def receive(self) -> bytes:
        return await self._reader.read(1 << 16)

    def write(self, pieces: Sequence[Buffer]) -> None:
        self._writer.writelines(pieces)

    async def drain(self) -> None:
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def wait_closed(self) -> None:
        await self._writer.wait_closed()


class IggyQuicClient(IggyClient):
    """The same calls, each on a stream of its own, side by side."""

    def __init__(self, runtime: Runtime, quic: QuicClient) -> None:
        self._runtime = runtime
        self.quic = quic

    async def call(self, command: Command[Q, R], request: Q, *, timeout: float | None = None) -> R:
        pieces = command.encode_request(request, Dialect.B2)
        status, body = await self.quic.request(command.code, pieces, seconds=timeout or 60)
        if status != Status.OK:
            raise error_of(status, command=command.name)
        return command.decode_response(memoryview(body), Dialect.B2)

    async def close(self) -> None:
        await self.quic.close()


class Running:
    """A data plane, and the ways to reach it."""

    def __init__(self, plane: DataPlane) -> None:
        self.plane = plane
        self.runtime = system_runtime()
        self.iggy = parse_address(plane.addresses()["iggy"])

    @property
    def authority(self) -> Path:
        return Path(self.plane.authority_path)

    def statistics(self, name: str) -> int:
        assert self.plane.broker is not None
        value = self.plane.broker.statistics()[name]
        assert isinstance(value, int)
        return value

    async def plain(self) -> IggyClient:
        client = await IggyClient.connect(self.runtime, *self.iggy)
        await client.login("iggy", "iggy")
        return client

    async def standard_tls(
        self, name: str = "localhost", context: ssl.SSLContext | None = None
    ) -> StandardTls:
        trusting = context or ssl.create_default_context(cafile=str(self.authority))
        streams = await asyncio.open_connection(*self.iggy, ssl=trusting, server_hostname=name)
        return StandardTls(*streams)

    async def tls(self) -> IggyClient:
        client = IggyClient(self.runtime, await self.standard_tls())
        await client.login("iggy", "iggy")
        return client

    async def quic(self) -> IggyQuicClient:
        address = parse_address(self.plane.addresses()["quic"])
        authority = self.authority.read_bytes()
        quic = await QuicClient.connect(self.runtime, address, authority=authority)
        client = IggyQuicClient(self.runtime, quic)
        await client.login("iggy", "iggy")
        return client


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    plane = DataPlane(system_runtime(), settings_of(tmp_path))
    await plane.start()
    try:
        yield Running(plane)
    finally:
        await plane.close()


# -- all at once


async def test_clients_of_all_transports_read_each_other(server: Running) -> None:
    clients = [await server.plain(), await server.tls(), await server.quic()]
    await clients[0].create_stream("s")
    await clients[0].create_topic("s", "t")
    for name, client in zip((b"plain", b"tls", b"quic"), clients, strict=True):
        await client.send("s", "t", [Message(name)], partitioning=FIRST)
    for client in clients:
        polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
        assert [m.payload for m in polled.messages()] == [b"plain", b"tls", b"quic"]
    kinds = [(await client.get_me()).client.transport for client in clients]
    assert kinds == [TransportKind.TCP, TransportKind.TCP, TransportKind.QUIC]
    listed = await clients[2].get_clients()
    assert sorted(info.transport for info in listed) == sorted(kinds)
    assert all(info.user_id is not None for info in listed)
    node = (await clients[2].get_cluster_metadata()).nodes[0]
    assert (node.tcp_port, node.quic_port) == (
        server.iggy[1],
        parse_address(server.plane.addresses()["quic"])[1],
    )
    for client in clients:
        await client.close()


def test_real_clients_over_tls_and_plain_against_headrace_up(tmp_path: Path) -> None:
    """Three generations, each over TLS and plain, at the same time on one port (on uvloop)."""
    with running(tmp_path) as server:
        authority = tmp_path / "data/secrets/tls/ca.pem"
        assert str(authority) in server.log
        address = server.addresses["iggy"]
        options = f"?tls=true&tls_domain=localhost&tls_ca_file={authority}"
        started = []
        for version in REAL_CLIENTS:
            for way, query in (("tls", options), ("plain", "")):
                command = [str(ROOT / f".venv/peers/iggy-{version}/bin/python")]
                command += [str(PEERS / "run.py"), str(PEERS / "large_messages.py")]
                command += [f"iggy+tcp://iggy:iggy@{address}{query}", f"{way}-{version}"]
                started.append(
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                    )
                )
        for process in started:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
            assert output.strip() == "3349253"

        async def over_quic() -> None:
            runtime = system_runtime()
            quic = await QuicClient.connect(runtime, parse_address(server.addresses["quic"]))
            async with IggyQuicClient(runtime, quic) as client:
                await client.login("iggy", "iggy")
                assert len(await client.get_streams()) == 2 * len(REAL_CLIENTS)

        asyncio.run(over_quic())


# -- TLS


async def test_large_messages_over_many_records(server: Running) -> None:
    async with await server.tls() as client:
        await client.create_stream("s")
        await client.create_topic("s", "t")
        sent = [Message(bytes([n]) * 2_500_000) for n in range(4)]
        await client.send("s", "t", sent, partitioning=FIRST, timeout=60)
        polled = await client.poll("s", "t", partition=0, strategy=Strategy.first(), timeout=60)
        assert [m.payload for m in polled.messages()] == [m.payload for m in sent]
        small = [Message(b"m%d" % n) for n in range(1000)]
        for message in small:
            await client.send("s", "t", [message], partitioning=FIRST)
        polled = await client.poll(
            "s", "t", partition=0, strategy=Strategy.offset(4), count=1000, timeout=60
        )
        assert [m.payload for m in polled.messages()] == [m.payload for m in small]


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
async def test_the_development_certificate_fits_the_loopback_names(
    server: Running, name: str
) -> None:
    connection = await server.standard_tls(name)
    assert connection.version == "TLSv1.3"
    connection.close()
    await connection.wait_closed()


async def test_tls_1_2_is_the_oldest(server: Running) -> None:
    context = ssl.create_default_context(cafile=str(server.authority))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    connection = await server.standard_tls(context=context)
    assert connection.version == "TLSv1.2"
    client = IggyClient(server.runtime, connection)
    await client.login("iggy", "iggy")
    await client.close()
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        await server.standard_tls(context=context)


async def test_who_does_not_know_the_authority_does_not_connect(server: Running) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        await server.standard_tls(context=ssl.create_default_context())
    with pytest.raises(ssl.SSLCertVerificationError):
        await server.standard_tls("example.org")


async def test_bad_handshakes_harm_nobody(tmp_path: Path) -> None:
    tls = TlsSettings(handshake_ms=3000)
    plane = DataPlane(system_runtime(), settings_of(tmp_path, tls))
    await plane.start()
    server = Running(plane)
    try:
        clients = [await server.plain(), await server.tls()]
        writers = []
        for number in range(60):
            reader, writer = await asyncio.open_connection(*server.iggy)
            garbage = (b"\x16", b"\x16\x03\x01\x02\x00\x01\x00", b"\x16\x03\x03\x00\x02\x01\xff")
            writer.write(garbage[number % 3] + (b"\xaa" * 5000 if number % 3 == 2 else b""))
            writers.append((reader, writer))
        for client in clients:
            for _ in range(20):
                await client.ping()
        # Whatever was half-way is given up after the handshake time, and told nothing but an alert.
        for reader, writer in writers:
            async with asyncio.timeout(10):
                with suppress(ConnectionResetError):
                    assert len(await reader.read()) < 100
            writer.close()
        assert server.statistics("frames_malformed") == 60
        assert server.statistics("clients") == 2
        for client in clients:
            await client.ping()
            await client.close()
    finally:
        await plane.close()


# -- QUIC


async def test_ten_megabytes_over_quic_and_many_streams_side_by_side(server: Running) -> None:
    async with await server.quic() as client:
        await client.create_stream("s")
        await client.create_topic("s", "t", partitions_count=4)
        blocks = [[Message(bytes([n]) * 1000) for _ in range(1000)] for n in range(10)]
        await asyncio.gather(
            *(
                client.send("s", "t", block, partitioning=Partitioning.to_partition(n % 4))
                for n, block in enumerate(blocks)
            )
        )
        polls = await asyncio.gather(
            *(
                client.poll("s", "t", partition=n, strategy=Strategy.first(), count=10_000)
                for n in range(4)
            )
        )
        payloads = [m.payload for polled in polls for m in polled.messages()]
        assert sum(map(len, payloads)) == 10_000_000
        assert sorted(payloads) == sorted(m.payload for block in blocks for m in block)
        large = Message(bytes(range(250)) * 20_000)
        await client.send("s", "t", [large], partitioning=FIRST)
        last = await client.poll("s", "t", partition=0, strategy=Strategy.last(), count=1)
        assert last.messages()[0].payload == large.payload


async def test_wrong_frames_over_quic_cost_a_stream_only(server: Running) -> None:
    async with await server.quic() as client:
        invalid = struct.pack("<II", Status.INVALID_COMMAND, 0)
        for sent in (b"", b"\x01", struct.pack("<II", 40, 1), struct.pack("<I", 3) + b"abc"):
            assert await client.quic.exchange(sent) == invalid
        unknown = await client.quic.request(0x7FFF_FFFF, [b"what"])
        assert unknown == (Status.INVALID_COMMAND, b"")
        assert await client.quic.request(302, [b"\xff" * 5]) != (Status.OK, b"")
        await client.ping()
        assert (await client.get_me()).client.transport is TransportKind.QUIC


async def test_the_login_belongs_to_the_connection(server: Running) -> None:
    async with await server.quic() as known:
        address = parse_address(server.plane.addresses()["quic"])
        quic = await QuicClient.connect(server.runtime, address)
        async with IggyQuicClient(server.runtime, quic) as stranger:
            assert (await stranger.quic.request(201))[0] == Status.UNAUTHENTICATED
            assert (await known.quic.request(201))[0] == Status.OK
            await stranger.login("iggy", "iggy")
            assert (await stranger.quic.request(201))[0] == Status.OK


@pytest.mark.parametrize("way", ["close", "vanish"])
async def test_a_lost_quic_connection_leaves_its_groups(tmp_path: Path, way: str) -> None:
    quick = QuicSettings(idle_ms=6000, keep_alive_ms=1000) if way == "vanish" else QuicSettings()
    plane = DataPlane(system_runtime(), settings_of(tmp_path, quic=quick))
    await plane.start()
    server = Running(plane)
    try:
        watcher, member, other = await server.plain(), await server.quic(), await server.tls()
        await watcher.create_stream("s")
        await watcher.create_topic("s", "t", partitions_count=2)
        await watcher.create_group("s", "t", "g")
        for client in (member, other):
            await client.join_group("s", "t", "g")
        details = await watcher.get_group("s", "t", "g")
        assert details is not None
        assert len(details.members) == 2
        await (member.quic.close() if way == "close" else member.quic.vanish())
        async with asyncio.timeout(25):  # silence counts as an end after idle and keep-alive time
            while True:
                details = await watcher.get_group("s", "t", "g")
                assert details is not None
                if len(details.members) == 1:
                    break
                await asyncio.sleep(0.2)
        assert len(details.members[0].partitions) == 2
        await watcher.close()
        await other.close()
    finally:
        await plane.close()


async def test_a_stop_tells_quic_clients(tmp_path: Path) -> None:
    plane = DataPlane(system_runtime(), settings_of(tmp_path))
    await plane.start()
    client = await Running(plane).quic()
    await plane.close()
    await client.quic.wait_over(seconds=5)
    with pytest.raises(UnavailableError):
        await client.ping()
    await client.close()


# -- settings


async def test_quic_and_tls_can_be_switched_off(tmp_path: Path) -> None:
    plane = DataPlane(
        system_runtime(), settings_of(tmp_path, TlsSettings(mode="off"), quic_port=-1)
    )
    await plane.start()
    try:
        server = Running(plane)
        assert "quic" not in plane.addresses()
        async with await server.plain() as client:
            node = (await client.get_cluster_metadata()).nodes[0]
            assert node.quic_port == 0
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await server.standard_tls()
    finally:
        await plane.close()


async def test_the_certificate_is_made_once_and_files_take_its_place(tmp_path: Path) -> None:
    plane = DataPlane(system_runtime(), settings_of(tmp_path))
    await plane.start()
    folder = tmp_path / "data/secrets/tls"
    made = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(made) == {"ca.pem", "certificate.pem", "key.pem"}
    assert stat.S_IMODE((folder / "key.pem").stat().st_mode) == 0o600
    await plane.close()

    plane = DataPlane(system_runtime(), settings_of(tmp_path))
    await plane.start()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == made
    await plane.close()

    files = TlsSettings(
        mode="required",
        certificate=str(folder / "certificate.pem"),
        key=str(folder / "key.pem"),
    )
    plane = DataPlane(system_runtime(), settings_of(tmp_path / "other", files))
    await plane.start()
    try:
        server = Running(plane)
        assert plane.authority_path == ""
        assert not (tmp_path / "other/data/secrets/tls").exists()
        trusting = ssl.create_default_context(cadata=made["ca.pem"].decode())
        connection = await server.standard_tls(context=trusting)
        client = IggyClient(server.runtime, connection)
        await client.login("iggy", "iggy")
        await client.close()
        with pytest.raises(UnavailableError):
            await server.plain()
        trust = client_context(made["certificate.pem"])  # the server's own is enough
        tls = ClientTls(context=trust, server_name="localhost")
        async with await IggyClient.connect(server.runtime, *server.iggy, tls=tls) as client:
            await client.login("iggy", "iggy")
            await client.ping()
    finally:
        await plane.close()


@pytest.mark.parametrize(
    ("certificate", "key", "reason"),
    [
        ("missing.pem", "missing.pem", "cannot read"),
        ("certificate.pem", "", "belong together"),
        ("certificate.pem", "other-key.pem", "cannot be used"),
        ("certificate.pem", "locked-key.pem", "cannot be used"),
        ("key.pem", "key.pem", "cannot be used"),
    ],
)
async def test_certificate_files_that_do_not_fit_stop_the_start(
    tmp_path: Path, certificate: str, key: str, reason: str
) -> None:
    plane = DataPlane(system_runtime(), settings_of(tmp_path))
    await plane.start()
    await plane.close()
    folder = tmp_path / "data/secrets/tls"
    secret = ec.generate_private_key(ec.SECP256R1())
    for name, protection in (("other-key", b""), ("locked-key", b"password")):
        encryption = BestAvailableEncryption(protection) if protection else NoEncryption()
        pem = secret.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        (folder / f"{name}.pem").write_bytes(pem)
    tls = TlsSettings(
        certificate=str(folder / certificate) if certificate else "",
        key=str(folder / key) if key else "",
    )
    plane = DataPlane(system_runtime(), settings_of(tmp_path, tls))
    with pytest.raises(ConfigError, match=reason):
        await plane.start()
