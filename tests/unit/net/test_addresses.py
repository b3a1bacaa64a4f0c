from __future__ import annotations

import pytest

from headrace.errors import InvalidArgumentError
from headrace.net.addresses import format_address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:8090", "localhost", 8090),
        ("[::1]:0", "::1", 0),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
    ],
)
def test_round_trip(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "::1:80",
        "host:65536",
        "host:-1",
        "host:+1",
        "host:x",
        "[]:1",
        "h:١",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_address(text)
