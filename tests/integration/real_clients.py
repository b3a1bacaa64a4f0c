"""Scripts of `tests/peers` under the interpreters of the real Iggy clients."""

from __future__ import annotations

import asyncio

from headrace.client.iggy import IggyClient
from headrace.wire.iggy.primitives import Consumer
from tests.integration.server import PEERS, ROOT

VERSIONS = ["0.5.0", "0.6.0", "0.7.0", "0.8.0", "0.9.0"]
SECONDS = 200  # for a whole script, with disks that take a second to sync

_spawned: list[asyncio.subprocess.Process] = []


def interpreter(version: str) -> str:
    path = ROOT / f".venv/peers/iggy-{version}/bin/python"
    assert path.exists(), "run `make test`: it installs the real clients"
    return str(path)


async def spawn(version: str, script: str, *arguments: str) -> asyncio.subprocess.Process:
    """Ended by `end_spawned` at the latest."""
    process = await asyncio.create_subprocess_exec(
        interpreter(version),
        str(PEERS / "run.py"),
        str(PEERS / script),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    _spawned.append(process)
    return process


async def end_spawned() -> None:
    while _spawned:
        process = _spawned.pop()
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        line = (await process.stdout.readline()).decode()
    assert line.endswith("\n"), "it ended"
    return line


async def finish(process: asyncio.subprocess.Process) -> str:
    """Close its input, wait for its end; what it printed since it was last read."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        output, _ = await process.communicate()
        raise AssertionError(f"not over in time:\n{output.decode()}") from None
    assert process.returncode == 0, output.decode()
    return output.decode()


async def run_peer(version: str, script: str, *arguments: str) -> str:
    return await finish(await spawn(version, script, *arguments))


async def wait_stored(client: IggyClient, group: str, offsets: list[int]) -> None:
    """Until the group in stream `s`, topic `t` has stored these, by partition."""
    async with asyncio.timeout(SECONDS):
        while True:
            stored = [
                await client.get_consumer_offset(Consumer.group(group), "s", "t", partition)
                for partition in range(len(offsets))
            ]
            if [offset and offset.stored_offset for offset in stored] == offsets:
                return
            await asyncio.sleep(0.01)
