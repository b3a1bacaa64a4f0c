"""A server whose pipelines are emulated: real broker, real controller, real pages, no Spark."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

from headrace.assembly.secrets import load_secret
from headrace.assembly.web_server import WebServer
from headrace.config.controller import ControllerSettings
from headrace.net.addresses import parse_address
from headrace.net.credentials import service_token
from headrace.pipeline.application import Application
from headrace.pipeline.controller import Controller
from headrace.runtime.system import system_runtime
from headrace.testing.broker import LocalBroker
from headrace.web.api import create_app
from headrace.web.assets import load_assets
from headrace.web.broker_links import BrokerLinks
from tests.browser.emulated_containers import Behaviour, EmulatedLauncher, package
from tests.unit.pipeline.test_controller import MemoryLog

T = TypeVar("T")

SETTINGS = ControllerSettings(
    tick_interval_ms=100,
    restart_delay_ms_min=300,
    committed_interval_ms=200,
    container_heap_mb=256,
    container_workers_mb=0,
)


class PipelinesStage:
    """`with PipelinesStage() as stage:`; everything runs in a thread of its own."""

    def __init__(self) -> None:
        self.broker = LocalBroker()
        self.runtime = system_runtime()
        self.launcher = EmulatedLauncher(self.runtime)
        self.url = ""
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._main, name="stage", daemon=True)
        self.controller: Controller

    def __enter__(self) -> Self:
        self.broker.start()
        self._thread.start()
        self._ready.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()
        self.broker.__exit__(kind, error, trace)

    def run(self, call: Callable[[], Awaitable[T]], seconds: float = 15.0) -> T:
        """In the stage's thread."""

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

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        folder = self.broker._folder
        secret = load_secret(self.runtime.disk, self.runtime.random, folder)
        links = BrokerLinks(self.runtime, parse_address(self.broker.address), service_token(secret))
        self.controller = Controller(
            self.runtime,
            SETTINGS,
            data_dir=folder,
            open_log=MemoryLog().open,
            launcher=self.launcher,
            secret=secret,
        )
        await self.controller.start()
        web = create_app(self.runtime, self.controller, links, load_assets())
        server = WebServer(web.asgi)
        await server.start("127.0.0.1", 0)
        web.sampler.start()
        host, port = server.address
        self.url = f"http://{host}:{port}"
        self._ready.set()
        await self._over.wait()
        await web.sampler.close()
        await server.close()
        await self.controller.close()
        await links.close()
