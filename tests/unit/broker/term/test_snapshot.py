"""GET_SNAPSHOT_FILE: a real archive, without secrets, of bounded size."""

from __future__ import annotations

import io
import json
import logging
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.broker.term import snapshot
from headrace.broker.term.snapshot import Diagnostics, Snapshots
from headrace.observability.logging import RecentLines
from headrace.runtime.system import system_runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.system import GetSnapshot
from headrace.wire.iggy.messages.system import SnapshotCompression as Compression
from headrace.wire.iggy.messages.system import SnapshotType as Type
from headrace.wire.iggy.messages.users import CreateUser
from tests.unit.broker.harness import Client, Harness, code_of, opened

FILES = {
    "filesystem_overview.txt",
    "process_list.txt",
    "resource_usage.txt",
    "test.txt",
    "server_logs.txt",
    "server_config.txt",
}


def diagnose(h: Harness, folder: Path) -> None:
    (folder / "secrets").mkdir()
    (folder / "secrets" / "cluster").write_text("do not show")
    (folder / "empty").mkdir()
    diagnostics = Diagnostics(
        data_dir=str(folder),
        settings={"broker": {"root_password": "hush", "replicas": 1}, "host": "127.0.0.1"},
        processes=lambda: "1 init\n",
        logs=lambda: "a line\n" * 1_000_000,
    )
    h.broker.snapshots = Snapshots(system_runtime(), diagnostics)


async def fetch(
    client: Client, *types: Type, compression: Compression = Compression.DEFLATED
) -> zipfile.ZipFile:
    got = await client.call(c.GET_SNAPSHOT_FILE, GetSnapshot(compression, types))
    archive = zipfile.ZipFile(io.BytesIO(got.archive))
    assert archive.testzip() is None
    return archive


async def test_all_of_it(tmp_path: Path) -> None:
    async with opened() as h:
        diagnose(h, tmp_path)
        root = await h.root()
        archive = await fetch(root, Type.ALL)
        assert set(archive.namelist()) == FILES
        settings = json.loads(archive.read("server_config.txt"))
        assert settings["host"] == "127.0.0.1"
        assert settings["broker"] == {"root_password": "<hidden>", "replicas": 1}
        overview = archive.read("filesystem_overview.txt").decode()
        assert f"{len('do not show'):>12} {tmp_path}/secrets/cluster\n" in overview
        assert "bytes free" in overview
        assert archive.read("process_list.txt") == b"1 init\n"
        assert archive.read("test.txt") == b"test\n"
        assert json.loads(archive.read("resource_usage.txt"))["clients"] == 1
        logs = archive.read("server_logs.txt")
        assert len(logs) == snapshot.PART_BYTES_MAX
        assert logs.endswith(b"a line\n")
        everything = b"".join(archive.read(name) for name in FILES)
        assert b"hush" not in everything
        assert b"do not show" not in everything


@pytest.mark.parametrize(
    ("compression", "method"),
    [
        (Compression.STORED, zipfile.ZIP_STORED),
        (Compression.DEFLATED, zipfile.ZIP_DEFLATED),
        (Compression.BZIP2, zipfile.ZIP_BZIP2),
        (Compression.LZMA, zipfile.ZIP_LZMA),
    ],
)
async def test_compressions(compression: Compression, method: int) -> None:
    async with opened() as h:
        root = await h.root()
        archive = await fetch(root, Type.TEST, Type.PROCESS_LIST, compression=compression)
        assert [entry.compress_type for entry in archive.infolist()] == [method] * 2
        assert archive.namelist() == ["test.txt", "process_list.txt"]


async def test_what_cannot_be_made_is_refused() -> None:
    async with opened() as h:
        root = await h.root()

        async def status(compression: Compression, *types: Type) -> int:
            return await code_of(root.call(c.GET_SNAPSHOT_FILE, GetSnapshot(compression, types)))

        assert await status(Compression.ZSTD, Type.TEST) == 5
        assert await status(Compression.XZ, Type.TEST) == 5
        assert await status(Compression.STORED, Type.ALL, Type.TEST) == 3
        assert await status(Compression.STORED) == 3
        assert await root.status(c.GET_SNAPSHOT_FILE.code, b"\x01\x01\x07") == 3
        assert await root.status(c.GET_SNAPSHOT_FILE.code, b"\x09\x01\x01") == 3
        await root.call(c.CREATE_USER, CreateUser("ann", "secret"))
        ann = h.connect()
        await ann.login("ann", "secret")
        request = GetSnapshot(Compression.STORED, (Type.TEST,))
        assert await code_of(ann.call(c.GET_SNAPSHOT_FILE, request)) == 41


async def test_the_list_of_files_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "FILES_MAX", 3)
    for n in range(5):
        (tmp_path / f"{n}").write_bytes(b"x" * n)
    text = snapshot.overview(system_runtime().disk, str(tmp_path))
    assert text.splitlines()[:4] == [
        *(f"{n:>12} {tmp_path}/{n}" for n in range(3)),
        "... and more; only 3 files are listed",
    ]


def test_recent_lines_are_the_newest_and_bounded() -> None:
    recent = RecentLines(bytes_max=300)
    logger = logging.Logger("noisy")
    logger.addHandler(recent)
    for n in range(100):
        logger.warning("event %d", n, extra={"password": "hush"})
    lines = recent.text().splitlines()
    assert "event 99" in lines[-1]
    assert len(recent.text()) <= 300
    assert len(lines) > 1
    assert "hush" not in recent.text()


async def test_other_clients_do_not_wait_for_an_archive(tmp_path: Path) -> None:
    """It is made in a thread: while that one is stuck, the broker answers."""
    import asyncio
    import threading

    gate = threading.Event()
    async with opened() as h:
        diagnostics = Diagnostics(data_dir=str(tmp_path))
        slow = replace(diagnostics, processes=lambda: str(gate.wait(10)))
        h.broker.snapshots = Snapshots(system_runtime(), slow)
        root, other = await h.root(), h.connect()
        making = asyncio.create_task(fetch(root, Type.PROCESS_LIST))
        await asyncio.sleep(0.05)
        assert await other.status(c.PING.code) == 0
        assert not making.done()
        gate.set()
        assert (await making).read("process_list.txt") == b"True"
