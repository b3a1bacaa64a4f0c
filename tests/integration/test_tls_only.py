"""Roles that take TLS only, each in a process of its own, and `headrace up` beyond loopback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from headrace.errors import RemoteProtocolError, UnauthenticatedError
from headrace.net.addresses import parse_address
from headrace.net.tls import ClientTls
from headrace.runtime.system import system_runtime
from headrace.runtime.system.tls import client_context_of
from headrace.sbp_client.channels import tcp_connect
from tests.integration.server import running

HEADRACE = (sys.executable, "-m", "headrace.cli.main")
SECRET = "5e" * 32
NAME = "headrace.example"
START_SECONDS = 60.0


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A certificate for a name that nothing here resolves, and settings that insist on it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    (tmp_path / "settings.toml").write_text(
        f'[tls]\nmode = "required"\n'
        f'certificate = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"\n'
    )
    return tmp_path


def command(files: Path, address: str, *arguments: str, text: str = "") -> str:
    """What a command that knows the certificate prints."""
    done = subprocess.run(
        [*HEADRACE, *arguments],
        capture_output=True,
        text=True,
        input=text,
        timeout=120,
        check=False,
        env={
            **os.environ,
            "HEADRACE_ADDRESS": address,
            "HEADRACE_USERNAME": "root",
            "HEADRACE_PASSWORD": "long enough",
            "HEADRACE_TLS_CA": str(files / "cert.pem"),
            "HEADRACE_TLS_SERVER_NAME": NAME,
            "NO_COLOR": "1",
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_and_read(files: Path, address: str) -> None:
    command(files, address, "stream", "create", "s")
    command(files, address, "topic", "create", "s/t")
    command(files, address, "produce", "s/t", text="one\ntwo\n")
    assert command(files, address, "consume", "s/t").splitlines() == ["one", "two"]


def connect(files: Path, address: str, *, tls: bool, name: str = NAME) -> None:
    """One SBP connection; raises what it ends with."""
    context = client_context_of(str(files / "cert.pem"))
    trust = ClientTls(context=context, server_name=name) if tls else None

    async def main() -> None:
        channel = await tcp_connect(system_runtime(), address, client_id="t", tls=trust)()
        await channel.close()

    asyncio.run(main())


@contextmanager
def role(files: Path, name: str, *arguments: str) -> Iterator[dict[str, str]]:
    ready, folder = files / f"{name}.json", files / name
    environment = {**os.environ, "THE_SECRET": SECRET, "HEADRACE_ROOT_PASSWORD": "long enough"}
    environment["HEADRACE_ROOT_USERNAME"] = "root"
    with (files / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *HEADRACE, name, "--data-dir", str(folder), "--ready-file", str(ready),
                "--config", str(files / "settings.toml"), "--secret", "env:THE_SECRET", *arguments,
            ],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            said = (files / f"{name}.log").read_text()
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        process.wait(60)


def test_roles_know_each_other_by_their_certificate(files: Path) -> None:
    with (
        role(files, "placement-manager", "--placement-port", "0") as placement,
        role(
            files, "data-node", "--node-port", "0",
            "--placement-managers", placement["placement_manager"],
        ) as node,
        role(
            files, "broker", "--iggy-port", "0", "--quic-port", "-1",
            "--placement-managers", placement["placement_manager"],
        ) as broker,
    ):  # fmt: skip
        write_and_read(files, broker["iggy"])
        for address in (placement["placement_manager"], node["data_node"]):
            connect(files, address, tls=True)
            with pytest.raises(UnauthenticatedError, match="TLS"):
                connect(files, address, tls=False)
            with pytest.raises(RemoteProtocolError, match="elsewhere"):
                connect(files, address, tls=True, name="elsewhere")


def test_up_leaves_loopback_with_a_certificate_and_keeps_the_umbilical_home(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_ROOT_USERNAME", "root")
    monkeypatch.setenv("HEADRACE_ROOT_PASSWORD", "long enough")
    arguments = ("--host", "0.0.0.0", "--config", str(files / "settings.toml"))
    with running(files / "server", arguments=arguments) as server:
        local = {
            name: f"127.0.0.1:{parse_address(address)[1]}"
            for name, address in server.addresses.items()
        }
        assert parse_address(server.addresses["umbilical"])[0] == "127.0.0.1"
        for name in ("iggy", "placement_manager", "data_node", "http"):
            assert parse_address(server.addresses[name])[0] == "0.0.0.0"
        write_and_read(files, local["iggy"])
        with pytest.raises(UnauthenticatedError, match="TLS"):
            connect(files, local["data_node"], tls=False)
        trust = client_context_of(str(files / "cert.pem"))
        with httpx.Client(verify=trust, trust_env=False) as web:
            page = web.get(
                f"https://{local['http']}/api/overview",
                auth=("root", "long enough"),
                extensions={"sni_hostname": NAME},
            )
        assert page.status_code == 200, "the control plane reached the broker over TLS"
        with pytest.raises(httpx.HTTPError), httpx.Client(trust_env=False) as web:
            web.get(f"http://{local['http']}/api/overview").raise_for_status()
