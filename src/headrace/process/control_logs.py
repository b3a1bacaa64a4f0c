"""The control logs of a data directory that nobody uses: what they lost, and going on without it.

A placement manager and a data node run for the moment, on ports that nobody was told, without a
broker: nothing is replayed, so nothing can refuse to start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from headrace.config.settings import Settings
from headrace.process.data_plane import LogPlane
from headrace.runtime import Runtime
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.state_salvage import Condition, accept_losses, look_at

LEASES = {
    "s/catalogue": "broker",
    "s/offsets": "broker",
    "s/publishers": "broker",
    "s/controller": "controller",
}
CONTENTS = {
    "s/catalogue": "users, tokens, streams, topics and groups",
    "s/offsets": "stored offsets of consumers and groups",
    "s/publishers": "windows that publishers closed",
    "s/controller": "pipelines, their windows and checkpoints",
}
_HOLDER = "control-log salvage"
_LEASE_MS = 10_000


class ControlLogs:
    def __init__(self, runtime: Runtime, client: SbpClient) -> None:
        self._runtime = runtime
        self._client = client

    async def conditions(self) -> list[Condition]:
        """Of every log. No event of theirs is changed; one that was never made is, empty."""
        found: list[Condition] = []
        for name in LEASES:
            made = await self._client.create_stream(name=name)
            if await self._client.list_ranges(made.stream_id):
                found.append(await look_at(self._client, name, made.stream_id))
        return found

    async def accept(self, conditions: Sequence[Condition]) -> None:
        """Go on without what they lost; durable on return."""
        for condition in conditions:
            epoch = await self._lead(LEASES[condition.name])
            await accept_losses(self._client, condition.name, epoch, condition.examined.missing)
            await self._client.release(LEASES[condition.name], _HOLDER, epoch)

    async def _lead(self, name: str) -> int:
        """As another holder than the server: it then takes nothing for what it left itself."""
        while True:
            answer = await self._client.lease(name, _HOLDER, _LEASE_MS)
            if answer.granted:
                return answer.epoch
            await self._runtime.clock.sleep(min(1.0, max(0.05, answer.remaining_ms / 1000)))


@asynccontextmanager
async def open_control_logs(runtime: Runtime, settings: Settings) -> AsyncIterator[ControlLogs]:
    """LockedError while a server runs on the data directory."""
    settings = msgspec.structs.replace(
        settings, host="127.0.0.1", placement_port=0, node_port=0, advertise=""
    )
    async with AsyncExitStack() as stack:
        plane = LogPlane(runtime, settings)
        await plane.start()
        stack.push_async_callback(plane.close)
        client = plane.client("salvage")
        stack.push_async_callback(client.close)
        yield ControlLogs(runtime, client)
