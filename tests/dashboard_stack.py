"""Data plane and control plane in a thread of this process: for tests of pages and their API."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar
from unittest.mock import patch

import httpx
import msgspec

from headrace.client.iggy import IggyClient
from headrace.config.settings import Settings
from headrace.net.addresses import parse_address
from headrace.process import control_plane
from headrace.process.control_plane import ControlPlane
from headrace.process.data_plane import DataPlane
from headrace.runtime.system import system_runtime
from headrace.web.app import Pipelines, create_app

T = TypeVar("T")

ROOT = ("iggy", "iggy")


class Stack:
    """`with Stack() as stack:`; `pipelines` stands for the controller's, where it is given."""

    def __init__(self, *, pipelines: Pipelines | None = None) -> None:
        self._folder = tempfile.mkdtemp(prefix="headrace-dashboard-")
        self._pipelines = pipelines
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dashboard stack", daemon=True)
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over: asyncio.Event | None = None
        self._iggy = ""
        self.url = ""

    def __enter__(self) -> Self:
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
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._failure is not None:
            raise self._failure

    def call(self, work: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Do something as the root user, in the stack's own loop."""

        async def do() -> T:
            host, port = parse_address(self._iggy)
            async with await IggyClient.connect(system_runtime(), host, port) as client:
                await client.login(*ROOT)
                return await work(client)

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(120)

    @property
    def code_token(self) -> str:
        """What running code takes beside the well-known password."""
        with open(f"{self._folder}/secrets/http-token") as file:
            return file.read()

    def session(self, user: tuple[str, str] = ROOT) -> str:
        """The token of a session's cookie."""
        given = {"username": user[0], "password": user[1]}
        answer = httpx.post(
            f"{self.url}/api/v1/session",
            json=given,
            headers={"x-headrace-page": "1"},
            trust_env=False,
            timeout=60,
        )
        assert answer.status_code == 201, answer.text
        return answer.cookies["headrace_session"]

    @contextmanager
    def watched(self) -> Iterator[dict[str, float]]:
        """How long the loop's callbacks took: `busy`, the longest in processor time, in seconds.

        Processor time, because on a busy machine the wall clock tells of the neighbours as well.
        """
        longest = {"busy": 0.0, "wall": 0.0}
        name = self._thread.ident
        original = asyncio.events.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            if threading.get_ident() != name:
                original(handle)
                return
            busy, wall = time.thread_time(), time.monotonic()
            original(handle)
            longest["busy"] = max(longest["busy"], time.thread_time() - busy)
            longest["wall"] = max(longest["wall"], time.monotonic() - wall)

        with patch.object(asyncio.events.Handle, "_run", timed):
            yield longest

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        runtime, settings = system_runtime(), self._settings()
        data = DataPlane(runtime, settings)
        await data.start()
        try:
            pages = ControlPlane(runtime, settings, data.addresses(), environment=dict(os.environ))
            with patch.object(control_plane, "create_app", self._create_app):
                await pages.start()
            try:
                self._iggy = data.addresses()["iggy"]
                self.url = f"http://{pages.addresses()['http']}"
                gc.freeze()  # as the process does that serves the pages
                self._ready.set()
                await self._over.wait()
            finally:
                gc.unfreeze()
                await pages.close()
        finally:
            await data.close()

    def _create_app(self, runtime: Any, pipelines: Pipelines, *rest: Any) -> Any:
        return create_app(runtime, self._pipelines or pipelines, *rest)

    def _settings(self) -> Settings:
        plain = Settings()
        broker: Any = msgspec.structs.replace(
            plain.broker, root_username=ROOT[0], root_password=ROOT[1]
        )
        return msgspec.structs.replace(
            plain, data_dir=self._folder, host="127.0.0.1", iggy_port=0, quic_port=-1,
            placement_port=0, node_port=0, http_port=0, dev=True, broker=broker,
        )  # fmt: skip
