"""Which addresses a server may listen on, and what it says when it refuses."""

from __future__ import annotations

import pytest

from headrace.config.settings import Settings, parse_settings
from headrace.errors import ConfigError

REQUIRED = b'[tls]\nmode = "required"\ncertificate = "a.pem"\nkey = "b.pem"\n'


def refusal(file: bytes = b"", **overrides: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_settings(file, overrides)
    return str(caught.value)


def test_the_defaults_are_safe() -> None:
    assert parse_settings(b"", {}) == Settings()
    assert Settings().host == "127.0.0.1"
    assert Settings().tls.mode == "optional"


@pytest.mark.parametrize("where", ["host", "iggy_host"])
def test_ports_may_leave_loopback_with_tls_and_a_certificate(where: str) -> None:
    settings = parse_settings(REQUIRED, {where: "0.0.0.0"})
    assert getattr(settings, where) == "0.0.0.0"
    assert parse_settings(b"", {where: "0.0.0.0", "insecure": True}).insecure


def test_the_iggy_port_may_leave_loopback_alone() -> None:
    settings = parse_settings(REQUIRED, {"iggy_host": "0.0.0.0"})
    assert (settings.host, settings.iggy_host) == ("127.0.0.1", "0.0.0.0")


@pytest.mark.parametrize("where", ["host", "iggy_host"])
@pytest.mark.parametrize(
    "file",
    [
        b"",
        b'[tls]\nmode = "required"\n',  # the development certificate proves nothing to others
        b'[tls]\nmode = "optional"\ncertificate = "a.pem"\nkey = "b.pem"\n',
        b'[tls]\nmode = "required"\ncertificate = "a.pem"\n',
    ],
)
def test_anything_less_is_refused_with_the_way_out(file: bytes, where: str) -> None:
    text = refusal(file, **{where: "192.0.2.1"})
    assert "umbilical" in text
    assert "192.0.2.1" in text
    assert 'tls.mode = "required"' in text


@pytest.mark.parametrize("where", ["host", "iggy_host"])
def test_the_well_known_password_stays_on_loopback(where: str) -> None:
    text = refusal(REQUIRED, **{where: "0.0.0.0"}, dev=True, insecure=True)
    assert "--dev" in text
    assert parse_settings(b"", {where: "::1", "dev": True}).dev


def test_streams_for_anybody_stay_on_loopback() -> None:
    assert not Settings().plain_streams
    text = refusal(b"plain_streams = true\n", host="192.0.2.1", insecure=True)
    assert "plain_streams" in text
    assert parse_settings(b"plain_streams = true\n", {"iggy_host": "::1"}).plain_streams


def test_the_umbilical_leaves_loopback_only_where_the_network_is_ones_own() -> None:
    file = b'[controller]\numbilical_host = "192.0.2.1"\n'
    text = refusal(REQUIRED + file)
    assert "192.0.2.1" in text
    assert "--insecure" in text
    assert "nothing is encrypted" in text
    assert "--dev" in refusal(file, dev=True, insecure=True)
    allowed = parse_settings(file, {"insecure": True})
    assert allowed.controller.umbilical_host == "192.0.2.1"
    nowhere = b'[controller]\numbilical_host = "0.0.0.0"\n'
    assert "name an address" in refusal(nowhere, insecure=True)


def test_ports() -> None:
    assert parse_settings(b"", {"quic_port": -1}).quic_port == -1
    assert "quic_port" in refusal(quic_port=-2)
    assert "iggy_port" in refusal(iggy_port=-1)
    assert "mode" in refusal(b'[tls]\nmode = "sometimes"\n')


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_host_is_refused_and_not_every_interface(empty: str) -> None:
    for option in ("host", "iggy_host", "data_dir", "secret", "advertise"):
        text = refusal(b"", **{option: empty}, dev=True)
        assert f"--{option.replace('_', '-')}" in text
        assert "unset variable" in text
    assert "host is empty" in refusal(f'host = "{empty}"\n'.encode(), dev=True)
    assert "data_dir is empty" in refusal(f'data_dir = "{empty}"\n'.encode())
    metrics = f'[observability]\nmetrics_host = "{empty}"\n'.encode()
    assert "metrics_host is empty" in refusal(metrics, metrics_port=0, insecure=True)
