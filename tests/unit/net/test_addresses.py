from __future__ import annotations

import pytest

from headrace.errors import InvalidArgumentError
from headrace.net.addresses import advertised, format_address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:8090", "localhost", 8090),
        ("[::1]:0", "::1", 0),
        ("10.0.0.1:65535", "10.0.0.1", 65535),
        ("[2001:db8::7]:10911", "2001:db8::7", 10911),
        ("[::ffff:192.0.2.1]:1", "::ffff:192.0.2.1", 1),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("dn-4.cluster.example:10911", "dn-4.cluster.example", 10911),
        ("under_score:1", "under_score", 1),
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
        "[localhost]:1",
        "[10.0.0.1]:1",
        "[::1:1",
        "::1]:1",
        "[::1]",
        "[1::2::3]:1",
        "a b:1",
        "http://host:1",
        "user@host:1",
        "one:1,two:2",
        "host\n:1",
        "h" * 254 + ":1",
        "h:١",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError):
        parse_address(text)


@pytest.mark.parametrize(
    ("advertise", "told"),
    [
        ("", "127.0.0.1:7"),
        ("dn-4", "dn-4:7"),
        ("dn-4:99", "dn-4:99"),
        ("192.0.2.1", "192.0.2.1:7"),
        ("192.0.2.1:99", "192.0.2.1:99"),
        ("2001:db8::7", "[2001:db8::7]:7"),
        ("[2001:db8::7]", "[2001:db8::7]:7"),
        ("[2001:db8::7]:99", "[2001:db8::7]:99"),
    ],
)
def test_what_others_are_told(advertise: str, told: str) -> None:
    assert advertised(advertise, "127.0.0.1:7") == told
    parse_address(told)


@pytest.mark.parametrize("advertise", ["a b", "host:x", "[::1", "http://host", "[name]", "a,b"])
def test_what_nobody_could_connect_to_is_refused(advertise: str) -> None:
    with pytest.raises(InvalidArgumentError):
        advertised(advertise, "127.0.0.1:7")
