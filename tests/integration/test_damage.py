"""Bits that flip on the disk of `headrace up` after a kill: in messages and in control logs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.client.iggy import IggyClient
from headrace.errors import HeadraceError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from tests.integration.server import Server, running

LONG = b"w" * 100_000  # too long for the journal: it stands in one place


def flip_bits(server: Server, needle: bytes, *which: int) -> None:
    """In some of the places where the bytes stand in a log, counted from the first; all, if none
    is named."""
    places: list[tuple[Path, int]] = []
    for path in sorted((server.folder / "data/node/log/streams").glob("*/*/*.log")):
        data = path.read_bytes()
        at = data.find(needle)
        while at >= 0:
            places.append((path, at))
            at = data.find(needle, at + len(needle))
    assert len(places) > max(which, default=0), f"{needle[:20]!r} is in {len(places)} places"
    for path, at in [places[index] for index in which] or places:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))


async def connect(server: Server) -> IggyClient:
    address = parse_address(server.addresses["iggy"])
    client = await IggyClient.connect(system_runtime(), *address, timeout=20)
    await client.login("iggy", "iggy")
    return client


def control_log(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli.main", "control-log", *arguments]
    return subprocess.run(
        [*command, "--data-dir", str(server.folder / "data"), "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


async def test_damage_is_reported_mended_or_salvaged(tmp_path: Path) -> None:
    with running(tmp_path / "server") as server:
        async with await connect(server) as client:
            await client.create_stream("shop")
            for name in ("orders", "returns", "claims"):
                await client.create_topic("shop", name)
            await client.send(
                "shop", "orders", [Message(LONG)], partitioning=Partitioning.to_partition(0)
            )
        server.kill()
        flip_bits(server, LONG[:50_000], 0)
        flip_bits(server, b"returns", 0)

        server.start()  # one bit of the catalogue costs nothing
        async with await connect(server) as client:
            assert {topic.name for topic in await client.get_topics("shop")} == {
                "orders", "returns", "claims",
            }  # fmt: skip
            with pytest.raises(HeadraceError):  # it was acknowledged: not silently another one
                await client.poll("shop", "orders", partition=0, strategy=Strategy.offset(0))
            await client.send(
                "shop", "orders", [Message(b"next")], partitioning=Partitioning.to_partition(0)
            )
            polled = await client.poll("shop", "orders", partition=0, strategy=Strategy.offset(1))
            assert [(m.offset, m.payload) for m in polled.messages()] == [(1, b"next")]
            await client.create_topic("shop", "refunds")
        assert "corrupt batches" in server.log
        server.kill()

        flip_bits(server, b"refunds")
        with pytest.raises(AssertionError, match="control-log"):
            server.start()
        found = control_log(server, "check")
        assert found.returncode == 1, found.stderr
        lost = json.loads(found.stdout)["lost"]
        assert [each["log"] for each in lost] == ["s/catalogue"]
        assert lost[0]["start"] < lost[0]["end"]
        salvaged = control_log(server, "salvage")
        assert salvaged.returncode == 0, salvaged.stderr
        assert control_log(server, "check").returncode == 0
        server.start()
        async with await connect(server) as client:
            assert {topic.name for topic in await client.get_topics("shop")} == {
                "orders", "returns", "claims",
            }  # fmt: skip
