"""The etcd of `headrace cluster start` takes no orders from strangers: a real one, asked as a web
page, a bent name and another user of the machine would ask."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.cli.cluster.etcd import etcd_arguments, protect
from headrace.config.placement import EtcdSettings
from headrace.errors import HeadraceError, UnavailableError
from headrace.placement.metadata.election import Transaction
from headrace.placement.metadata.etcd import EtcdCoordinator
from tests.etcd import START_SECONDS, binary
from tests.ports import free_ports

PASSWORD = "known to placement managers"
EVERYTHING = {"key": "AA==", "range_end": "AA=="}


class LocalEtcd:
    def __init__(self, folder: Path) -> None:
        client, peer = free_ports(2)
        self.endpoint = f"http://127.0.0.1:{client}"
        self._arguments = etcd_arguments(binary(), str(folder / "data"), client, peer)
        self._log = folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._arguments, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"{self.endpoint}/health", timeout=1).is_success:
                    return
            except httpx.HTTPError:
                pass
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, "etcd did not start"
            time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return httpx.post(f"{self.endpoint}/v3/{path}", json=body, headers=headers, timeout=10)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[LocalEtcd]:
    made = LocalEtcd(tmp_path)
    try:
        made.start()
        protect(made.endpoint, PASSWORD)
        yield made
    finally:
        made.stop()


async def test_only_who_knows_the_password_gives_orders(etcd: LocalEtcd) -> None:
    settings = EtcdSettings(endpoints=(etcd.endpoint,), username="root", timeout_ms=20_000)
    ours = EtcdCoordinator(settings, password=PASSWORD)
    assert (await ours.write(Transaction([], {"kept": b"1"}))).succeeded
    lease, _ = await ours.grant(60)
    assert (await ours.write(Transaction([], {"leader": b"us"}, lease=lease))).succeeded

    for path, body in (
        ("kv/deleterange", EVERYTHING),
        ("kv/put", {"key": "AA==", "value": "AA=="}),
        ("kv/range", EVERYTHING),
        ("lease/revoke", {"ID": str(lease)}),
        ("auth/disable", {}),
        ("auth/user/add", {"name": "mallory", "password": "x"}),
    ):
        # As a page's form would send it: no question whether it may, no credentials.
        answer = etcd.post(path, body, Origin="http://evil.example")
        assert not answer.is_success, (path, answer.text)
    assert not etcd.post("auth/authenticate", {"name": "root", "password": "root"}).is_success
    found = {entry.key: entry.value for entry in await ours.scan("")}
    assert found == {"kept": b"1", "leader": b"us"}

    bent = etcd.post("kv/range", EVERYTHING, Host="evil.example:80")
    assert bent.status_code == 421, "a name that was bent to loopback"
    page = etcd.post("kv/range", EVERYTHING, Origin="http://evil.example")
    assert page.headers.get("access-control-allow-origin") not in ("*", "http://evil.example")

    etcd.stop()
    etcd.start()
    protect(etcd.endpoint, PASSWORD)  # the next `cluster start`
    with pytest.raises(UnavailableError):
        protect(etcd.endpoint, "another")
    assert (await ours.write(Transaction([], {"kept": b"2"}))).succeeded
    await ours.close()
    stranger = EtcdCoordinator(EtcdSettings(endpoints=(etcd.endpoint,)))
    with pytest.raises(HeadraceError):
        await stranger.read("kept")
    await stranger.close()
