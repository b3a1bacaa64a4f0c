"""A real PostgreSQL for tests: Debian's `postgresql` package, on a free loopback port.

The server refuses to run as root, so there it is started as the package's own user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

INSTALL = "apt-get install --no-install-recommends postgresql"
START_SECONDS = 60.0
USER = "postgres"


def binary(name: str) -> str:
    """Debian keeps the server's programs off the PATH, by version: the newest one."""
    versions = Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(versions, key=lambda path: float(path.parts[-3]), default=None)
    found = str(newest) if newest is not None else shutil.which(name)
    if found is None:
        pytest.fail(f"{name} is not installed; install it: {INSTALL}", pytrace=False)
    return found


@contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """Started and ready; gives its connection string, and stops it at the end."""
    port = free_port()
    data = folder / "data"
    data.mkdir(parents=True)
    if os.getuid() == 0:
        shutil.chown(data, USER)
        for parent in (folder, *folder.parents):  # pytest's own folders are closed to others
            if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
                parent.chmod(parent.stat().st_mode | 0o011)
    log = (folder / "log").open("wb")
    make = [binary("initdb"), "-D", str(data), "-U", "headrace", "-A", "trust", "--no-sync"]
    as_user: dict[str, Any] = {}
    if os.getuid() == 0:
        as_user = {"user": USER, "group": USER, "extra_groups": []}
    subprocess.run(make, check=True, stdout=log, stderr=log, cwd="/", **as_user)
    options = ["-c", "fsync=off", "-c", f"port={port}", "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(
        [binary("postgres"), "-D", str(data), *options, "-k", ""],
        stdout=log,
        stderr=log,
        cwd="/",
        **as_user,
    )
    address = f"host=127.0.0.1 port={port} user=headrace dbname=postgres"
    try:
        _wait_ready(server, address, folder / "log")
        yield address
    finally:
        server.send_signal(signal.SIGINT)  # "fast": it ends its connections
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        log.close()


def _wait_ready(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    import psycopg

    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            psycopg.connect(address, connect_timeout=2).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"PostgreSQL did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
