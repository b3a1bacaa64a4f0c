"""A server whose pipelines are emulated: everything of it is real but the containers' Spark."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec

from headrace.client.iggy import IggyClient
from headrace.config.controller import ControllerSettings
from headrace.config.settings import Settings
from headrace.pipeline.controller import operations
from headrace.pipeline.controller.broker_edges import BrokerEdges
from headrace.pipeline.controller.operations import Operations
from headrace.pipeline.controller.views import to_json
from headrace.pipeline.declare.application import Application
from headrace.process import control_plane
from headrace.runtime.system import system_runtime
from headrace.web.app import Pipelines
from headrace.web.broker_api.groups import ROLES
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header
from tests.browser.emulated_containers import Behaviour, EmulatedLauncher, package, shop, small
from tests.dashboard_stack import Stack

T = TypeVar("T")

READER = ("reader", "reader")
LETTERS = 5
NO_PRICE = "ValueError: no price for sku 'X-7'"

SETTINGS = ControllerSettings(
    tick_interval_ms=100,
    restart_delay_ms_min=300,
    committed_interval_ms=200,
)


class EmulatedEdges(BrokerEdges):
    """Emulated containers read nothing and store no positions: what waits is what they tell."""

    async def readings(self, *_: Any) -> None:
        return None


class PipelinesStage(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.launcher = EmulatedLauncher(system_runtime())
        self.operations: Operations

    def run(self, call: Callable[[], Awaitable[T]], seconds: float = 60.0) -> T:
        """In the server's thread."""

        async def inner() -> T:
            return await call()

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(inner(), self._loop).result(seconds)

    def submit(self, app: Application, behaviour: Behaviour | None = None) -> None:
        self.launcher.behaviours[app.name] = behaviour or Behaviour()
        self.run(lambda: self.operations.submit(package(app)))

    def show(self, name: str) -> dict[str, Any]:
        async def look() -> dict[str, Any]:
            return to_json(self.operations.show(name))

        return self.run(look)

    def until(self, name: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What `show` says once the condition holds."""
        ends = time.monotonic() + 60
        while not condition(view := self.show(name)):
            assert time.monotonic() < ends, f"{name} did not come to it: {view['events'][-5:]}"
            time.sleep(0.02)
        return view

    async def _serve(self) -> None:
        launcher = patch.object(control_plane, "LocalLauncher", lambda *_, **__: self.launcher)
        # Emulated containers take no memory, so as many as one likes fit into any machine.
        memory = patch.object(operations, "check_memory", lambda *_, **__: None)
        edges = patch.object(control_plane, "BrokerEdges", EmulatedEdges)
        with launcher, memory, edges:
            await super()._serve()

    def _create_app(self, runtime: Any, pipelines: Pipelines, *rest: Any) -> Any:
        assert isinstance(pipelines, Operations)
        self.operations = pipelines
        return super()._create_app(runtime, pipelines, *rest)

    def _settings(self) -> Settings:
        return msgspec.structs.replace(super()._settings(), controller=SETTINGS)


def submit_all(stage: PipelinesStage) -> None:
    """One that works, one that falls behind, one that fails, one to try things on."""
    stage.submit(shop(), Behaviour(state_rows=12_000, late=1, bad=1))
    stage.submit(shop("clicks"), Behaviour(arrives=9_000, takes=6_000, backlog=90_000, busy=1.0))
    stage.submit(small("billing"), Behaviour(error=NO_PRICE, errors_left=1_000))
    stage.submit(small("calm"))


async def fill_letters(client: IggyClient) -> None:
    """A user who may only read, and dead letters of `valid` in the pipeline `shop`."""
    await client.create_user(*READER, permissions=ROLES["read"])
    await client.create_stream("shop")
    await client.create_topic("shop", "orders")
    await client.create_topic("shop", "valid.dead_letter")
    first = Partitioning.to_partition(0)
    order = Message(payload=b'{"sku": "first", "price": 3}')
    await client.send("shop", "orders", [order], partitioning=first)
    letters = [_letter(number) for number in range(LETTERS)]
    await client.send("shop", "valid.dead_letter", letters, partitioning=first)


def _letter(number: int) -> Message:
    headers = {
        "headrace.reason": f"qty > 0 does not hold ({-number})",
        "headrace.operator": "valid",
        "headrace.stream": "shop",
        "headrace.topic": "orders",
        "headrace.partition": "0",
        "headrace.offset": str(100 + number),
    }
    own = encode_headers([UserHeader.of(name, value) for name, value in headers.items()])
    payload = json.dumps({"sku": f"s{number}", "qty": -number}).encode()
    return Message(payload=payload, headers=key_header(b"k%d" % number) + own)
