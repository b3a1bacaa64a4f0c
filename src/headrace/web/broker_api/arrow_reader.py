"""Arrow tables for the message browser, read by a process that may die of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.errors import DeadlineError, UnavailableError
from headrace.observability.logging import get_logger
from headrace.runtime import Runtime, Worker
from headrace.web.broker_api import types as t
from headrace.web.broker_api.arrow_worker import TOO_MUCH

log = get_logger(__name__)

MODULE = "headrace.web.broker_api.arrow_worker"
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
SECONDS_FIRST = 20.0  # it starts, and loads its library
SECONDS = 2.0
DEATHS_MAX = 2  # of one request: what else it holds is shown as bytes


_TOO_MUCH = "It takes too much memory or time to be read as Arrow."


class Table(msgspec.Struct, array_like=True, frozen=True):
    """What the worker answers."""

    table: t.ArrowTable
    more: bool


class ArrowReader:
    """`read` asks one process for all; the turn is taken for each table, so that no request waits
    for all tables of another."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._worker: Worker | None = None
        self._turn = asyncio.Lock()

    async def read(self, payloads: Sequence[bytes]) -> list[Table | str]:
        """A table each, or why there is none: a sentence, or nothing where it is no Arrow."""
        found: list[Table | str] = []
        deaths = 0
        for payload in payloads:
            if len(payload) > PAYLOAD_BYTES_MAX:
                found.append("It is too long to be read as Arrow here.")
                continue
            if deaths >= DEATHS_MAX:
                found.append("It was not read as Arrow: others on this page took too much.")
                continue
            try:
                found.append(await self._read(payload))
            except (DeadlineError, UnavailableError) as error:
                deaths += 1
                log.warning("arrow table not read", bytes=len(payload), reason=str(error))
                found.append(_TOO_MUCH)
        return found

    async def _read(self, payload: bytes) -> Table | str:
        async with self._turn:
            worker, self._worker = self._worker, None
            if worker is not None and (answer := await _ask_old(worker, payload)) is None:
                worker = None
            if worker is None:
                worker = await self._runtime.processes.start_worker(MODULE)
                await worker.ask(b"", seconds=SECONDS_FIRST)
                answer = await worker.ask(payload, seconds=SECONDS)
            self._worker = worker  # it lives
        if answer == TOO_MUCH:
            return _TOO_MUCH
        return msgspec.json.decode(answer, type=Table) if answer else ""

    async def close(self) -> None:
        if self._worker is not None:
            await self._worker.close()
            self._worker = None


async def _ask_old(worker: Worker, payload: bytes) -> bytes | None:
    """None when it died: it may have done so before, and of something else."""
    try:
        return await worker.ask(payload, seconds=SECONDS)
    except UnavailableError:
        return None
