"""A container's login over real sockets: both framings, and a grant that is renewed in its file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.client import Client
from headrace.client.url import parse_url
from headrace.config.settings import parse_settings
from headrace.errors import UnauthorizedError
from headrace.net.credentials import Scope, make_grant
from headrace.process.control_plane import inherited
from headrace.runtime.system import system_runtime
from headrace.spark.options import parse_sink
from headrace.spark.server import Remote
from tests.integration.broker_stack import SECRET, Stack


def grant(*, seconds: float = 3600.0, writes: tuple[str, ...] = ("s/t",)) -> str:
    now_ms = system_runtime().clock.now_ms()
    scope = Scope(now_ms + int(seconds * 1000), "pipeline p", ("s/t",), writes, ("spark/*",))
    return make_grant(SECRET, scope)


@pytest.fixture
async def stack(tmp_path: Path) -> Stack:
    stack = await Stack(str(tmp_path / "data")).start()
    async with await stack.connect() as root:
        await root.create_stream("s")
        for name in ("t", "later"):
            await root.create_topic("s", name, partitions_count=1)
    return stack


async def test_a_program_in_a_container_is_its_application(stack: Stack, tmp_path: Path) -> None:
    """The client of people's programs sends in dialect C and asks in B2."""
    file = tmp_path / "grant"
    file.write_text(grant())
    try:
        server = parse_url(f"headrace://{stack.address}", {"HEADRACE_TOKEN_FILE": str(file)})
        async with Client(system_runtime(), server, retry_seconds=5.0) as client:
            await client.send("s/t", b"x")
            with pytest.raises(UnauthorizedError):
                await client.send("s/later", b"x")
            with pytest.raises(UnauthorizedError):
                await client.create_topic("s/mine")
        async with await stack.connect() as root:
            details = await root.get_topic("s", "t")
            assert details is not None
            assert details.topic.messages_count == 1
    finally:
        await stack.stop()


async def test_a_connection_takes_up_what_the_controller_renewed(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADRACE_USERNAME", "HEADRACE_PASSWORD", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "grant"
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(file))
    file.write_text(grant(seconds=0.5))
    target = parse_sink({"address": stack.address, "topic": "s/t"}).target
    later = parse_sink({"address": stack.address, "topic": "s/later"}).target
    remote = Remote(system_runtime(), target.address, target.credentials, target.tls)
    try:
        assert await remote.partition_count(target) == 1
        with pytest.raises(UnauthorizedError):
            await remote.partition_count(later)
        file.write_text(grant(writes=("s/t", "s/later")))
        assert await remote.partition_count(later) == 1
        await asyncio.sleep(0.6)  # what it first logged in with has ended
        assert await remote.partition_count(target) == 1
    finally:
        await remote.close()
        await stack.stop()


def test_containers_inherit_nothing_that_lets_anyone_in() -> None:
    settings = parse_settings(b'secret = "env:THE_SECRET"', {})
    environment = {
        "PATH": "/bin",
        "LAKE_PASSWORD": "the operator's own",
        "HEADRACE_ROOT_PASSWORD": "x",
        "HEADRACE_ROOT_USERNAME": "x",
        "IGGY_ROOT_PASSWORD": "x",
        "HEADRACE_PASSWORD": "x",
        "HEADRACE_TOKEN": "x",
        "THE_SECRET": "x",
    }
    assert inherited(environment, settings) == {
        "PATH": "/bin",
        "LAKE_PASSWORD": "the operator's own",
    }
