"""Whatever datagrams strangers send to the QUIC port: nothing escapes, and nothing stays."""

from __future__ import annotations

import asyncio
import functools
import ssl

from hypothesis import given, settings
from hypothesis import strategies as st
from qh3.quic.configuration import QuicConfiguration
from qh3.quic.connection import QuicConnection

from headrace.net.quic import QuicEndpoint, QuicLink
from tests.simulator.runtime import Simulation
from tests.unit.net.certificates import development

HOST, PORT = "10.0.0.1", 8080


class Deaf:
    """A handler; no stranger's bytes may reach it before a handshake."""

    def __init__(self, link: QuicLink) -> None:
        self._link = link

    def on_data(self, stream_id: int, data: bytes, *, end: bool) -> None:
        raise AssertionError("data without a handshake")

    def on_reset(self, stream_id: int) -> None:
        raise AssertionError("a stream without a handshake")

    async def on_closed(self) -> None:
        assert not self._link.is_connected


@functools.cache
def hello() -> list[bytes]:
    """The first flight of a real client."""
    client = QuicConnection(
        configuration=QuicConfiguration(server_name="localhost", verify_mode=ssl.CERT_NONE)
    )
    client.connect((HOST, PORT), 0.0)
    return [data for data, _ in client.datagrams_to_send(0.0)]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A datagram of a hello with some bytes changed, most of them in its header, or cut."""
    data = bytearray(hello()[draw(st.integers(0, 1)) % len(hello())])
    positions = st.one_of(st.integers(0, 40), st.integers(0, len(data) - 1))
    for position in draw(st.lists(positions, max_size=6)):
        data[position] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))])


@given(st.lists(st.one_of(damaged(), st.binary(max_size=1400)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_garbage_leaves_nothing_behind(datagrams: list[bytes]) -> None:
    simulation = Simulation(1)
    certificate, _ = development()
    endpoint = QuicEndpoint(
        simulation.runtime(HOST),
        certificate=certificate.chain,
        key=certificate.key,
        make_handler=Deaf,
    )

    async def main() -> None:
        await simulation.on(HOST, endpoint.start(HOST, PORT))
        transport = simulation.runtime("10.0.0.2").transport
        source = await transport.listen_datagrams("", 0, lambda data, _: None)
        for data in datagrams:
            source.send(data, (HOST, PORT))
        await asyncio.sleep(30)  # more than the idle time
        assert endpoint.links == []
        assert endpoint._routes == {}
        await simulation.on(HOST, endpoint.close())

    simulation.run(main())
