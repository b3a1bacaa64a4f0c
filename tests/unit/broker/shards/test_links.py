"""Where a worker is reached, as its lease tells."""

from __future__ import annotations

import pytest

from headrace.broker.shards.links import cluster_address, parse_link_address, unix_address
from headrace.errors import InvalidArgumentError
from headrace.net.peer_link import TcpAddress, UnixAddress


def test_workers_of_one_machine_use_its_unix_sockets() -> None:
    address = cluster_address("10.0.0.7:4711", "this one", "/data/broker.sock")
    assert parse_link_address(address, machine="this one") == UnixAddress("/data/broker.sock")
    for elsewhere in ("another", ""):
        found = parse_link_address(address, machine=elsewhere)
        assert found == TcpAddress("10.0.0.7", 4711, None)


def test_an_address_of_one_kind() -> None:
    assert parse_link_address(unix_address("/data/b.sock")) == UnixAddress("/data/b.sock")
    assert parse_link_address("[::1]:9", machine="x") == TcpAddress("::1", 9, None)
    with pytest.raises(InvalidArgumentError):
        parse_link_address("nowhere")
