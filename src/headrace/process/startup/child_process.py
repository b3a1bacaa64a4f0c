"""Processes that `headrace up` starts and keeps: how one is told what to do, and comes back.

Parent and child share a pipe. The parent writes what the child must know as its first line and then
keeps it open; when it closes, by a clean stop or because the parent was killed, the child ends. So
nothing is ever orphaned. The child says on its standard output that it is ready, or why it is not,
and then something every few seconds while it lives: one that is silent is stuck, and is ended.
"""

from __future__ import annotations

import asyncio
import json
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TextIO

import msgspec

from headrace.errors import ConfigError, UnavailableError
from headrace.observability.logging import get_logger

READY_SECONDS = 60.0
STOP_SECONDS = 30.0
RESTART_SECONDS_MIN = 1.0
RESTART_SECONDS_MAX = 30.0
WELL_SECONDS = 60.0  # after so long an end counts as the first one
SILENT_SECONDS = 60.0

log = get_logger(__name__)


@dataclass(slots=True)
class Restarts:
    """How long a child that ended waits for its next life: longer each time, up to a bound."""

    at_once: bool = False
    """The first time without a pause."""
    _ends: int = 0

    def on_ended(self, lived_seconds: float) -> float:
        """Seconds to wait now."""
        if lived_seconds >= WELL_SECONDS:
            self._ends = 0
        doublings = self._ends - int(self.at_once)
        self._ends += 1
        if doublings < 0:
            return 0.0
        return float(min(RESTART_SECONDS_MIN * 2**doublings, RESTART_SECONDS_MAX))


class Child(ABC):
    """A process that is started again when it ends."""

    def __init__(self, name: str, log: TextIO | None = None, *, at_once: bool = False) -> None:
        """`name` is what people call it. `log` is where its messages go; None: where ours do."""
        self.name = name
        self._log = log
        self._restarts = Restarts(at_once=at_once)
        self._process: asyncio.subprocess.Process | None = None
        self.addresses: dict[str, str] = {}

    @abstractmethod
    def _arguments(self) -> list[str]:
        """The command that starts it."""

    @abstractmethod
    def _order(self) -> dict[str, Any]:
        """What it must know; `addresses` are those of its last life, if it had one."""

    def _on_told(self, told: dict[str, Any]) -> bool:
        """Take what it said; whether that was the answer to what it was told."""
        self.addresses = told
        return True

    async def _on_ended(self, status: int, pause_seconds: float) -> None:
        """It ended by itself and is started again after the pause."""
        log.error(f"{self.name} ended", exit_status=status, restart_in_s=pause_seconds)

    @property
    def pid(self) -> int | None:
        """None while there is no process."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *self._arguments(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is for the parent, who then closes the pipe
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._order()) + b"\n")
        await self._wait_answer()

    async def _wait_answer(self) -> None:
        """Until it has done what it was told; ConfigError or UnavailableError when it cannot."""
        told: dict[str, Any] = {}
        while not told or ("error" not in told and not self._on_told(told)):
            told = await self._read_start()
        if "error" in told:
            await self.stop()
            if told.get("config"):
                raise ConfigError(told["error"])
            raise UnavailableError(f"the {self.name} did not start: {told['error']}")

    async def _read_start(self) -> dict[str, Any]:
        """The next thing that it says while it starts; nothing for a sign of life."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(READY_SECONDS):
                line = await self._process.stdout.readline()
        except TimeoutError:
            line = b""
        except ValueError:  # a line without an end: not from us
            return {"error": "it said something else"}
        if not line:
            return {"error": "it said nothing; its messages tell more"}
        try:
            return dict(json.loads(line)) if line.strip() else {}
        except ValueError:
            return {"error": "it said something else"}

    async def keep(self) -> None:
        """Start it again whenever it ends; the others do not stop for that."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            status = await self._wait_ended()
            pause = self._restarts.on_ended(loop.time() - began)
            await self._on_ended(status, pause)
            await asyncio.sleep(pause)
            try:
                await self.start()
            except (UnavailableError, ConfigError, OSError) as error:  # no memory: later perhaps
                log.error(f"{self.name} not started", reason=str(error))

    async def _wait_ended(self) -> int:
        """It says something every few seconds while it lives. One that does not is stuck, holds the
        port, and is ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            while True:
                async with asyncio.timeout(SILENT_SECONDS):
                    line = await self._process.stdout.readline()
                if not line:
                    break  # it closed its end, so it is ending
                if line.strip():
                    self._on_told(json.loads(line))
            async with asyncio.timeout(STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            log.error(f"{self.name} does not answer and is killed", silent_s=SILENT_SECONDS)
        except ValueError as error:  # a line without an end, or no JSON: not from us
            log.error(f"{self.name} is killed", reason=str(error))
        with suppress(ProcessLookupError):
            self._process.kill()
        return await self._process.wait()

    async def stop(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


def control_arguments() -> list[str]:
    return [sys.executable, "-m", "headrace.process.startup.control_plane_process"]


class ControlChild(Child):
    """The control plane's process: the log does not stop for a page."""

    def __init__(self, told: dict[str, Any], log: TextIO | None = None) -> None:
        super().__init__("control plane", log)
        self._told = told

    def _arguments(self) -> list[str]:
        return control_arguments()

    def _order(self) -> dict[str, Any]:
        # One that follows another takes its ports, so that its address stays good.
        return {**self._told, "before": self.addresses}
