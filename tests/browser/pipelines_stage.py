"""A server whose pipelines are emulated: everything of it is real but the containers' Spark."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec

from headrace.assembly import control_plane
from headrace.config.controller import ControllerSettings
from headrace.config.settings import Settings
from headrace.pipeline.application import Application
from headrace.pipeline.controller import Controller
from headrace.runtime.system import system_runtime
from tests.browser.emulated_containers import Behaviour, EmulatedLauncher, package
from tests.dashboard_stack import Stack

T = TypeVar("T")

SETTINGS = ControllerSettings(
    tick_interval_ms=100,
    restart_delay_ms_min=300,
    committed_interval_ms=200,
    container_heap_mb=256,
    container_workers_mb=0,
)


class PipelinesStage(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.launcher = EmulatedLauncher(system_runtime())
        self.controller: Controller

    def run(self, call: Callable[[], Awaitable[T]], seconds: float = 15.0) -> T:
        """In the server's thread."""

        async def inner() -> T:
            return await call()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(inner(), self._loop).result(seconds)

    def submit(self, app: Application, behaviour: Behaviour | None = None) -> None:
        self.launcher.behaviours[app.name] = behaviour or Behaviour()
        self.run(lambda: self.controller.submit(package(app)))

    def show(self, name: str) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return self.controller.show(name)

        return self.run(look)

    def until(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What `show` says once the condition holds."""
        ends = time.monotonic() + 10
        while not condition(view := self.show(name)):
            assert time.monotonic() < ends, f"{name} did not come to it: {view['events'][-5:]}"
            time.sleep(0.02)
        return view

    async def _serve(self) -> None:
        with patch.object(control_plane, "LocalLauncher", lambda *_, **__: self.launcher):
            await super()._serve()

    def _create_app(self, runtime: Any, controller: Any, *rest: Any) -> Any:
        self.controller = controller
        return super()._create_app(runtime, controller, *rest)

    def _settings(self) -> Settings:
        return msgspec.structs.replace(super()._settings(), controller=SETTINGS)
