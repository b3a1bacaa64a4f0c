"""`/metrics`, `/health` and `/ready` of one process, whatever roles run in it.

`/health` answers while the event loop turns: restart a process whose does not. `/ready` says
whether every role here can serve, 503 with the reasons if not: send no traffic there. With a token
`/metrics` and `/ready` ask for `Authorization: Bearer`; `/health` says nothing worth one. A role is
asked for its metrics and its checks as an `ObservedRole`.

Beside its roles a process tells of itself: its memory and threads, and how late its event loop is.
That delay is what a request waits at most because something held the loop: a tick is due every
second, and how late it comes is the figure.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.observability.exposition import (
    CONTENT_TYPE,
    Family,
    family,
    format_families,
    single,
)
from headrace.runtime.interfaces import Runtime
from headrace.web.server.endpoints import json_answer


class Check(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    reason: str = ""
    """For people: what is the matter, or how things are."""


class ObservedRole(Protocol):
    """One role of a process, for `/metrics` and `/ready`. Asked at any time, while it starts and
    while it stops too; may not raise."""

    @property
    def role(self) -> str: ...

    async def families(self) -> Iterable[Family]: ...

    async def checks(self) -> list[Check]: ...


async def ask(roles: Sequence[ObservedRole]) -> dict[str, list[Check]]:
    return {role.role: await role.checks() for role in roles}


def all_ok(checks: list[Check]) -> bool:
    return all(check.ok for check in checks)


class CheckResult(msgspec.Struct, frozen=True):
    ok: bool
    reason: str


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/ready`."""

    ready: bool
    reasons: list[str]
    roles: dict[str, dict[str, CheckResult]]
    """Results by role and by the name of the check."""


def describe(checks: dict[str, list[Check]]) -> Readiness:
    return Readiness(
        ready=all(map(all_ok, checks.values())),
        reasons=[
            f"{role}: {check.reason or check.name}"
            for role, found in checks.items()
            for check in found
            if not check.ok
        ],
        roles={
            role: {one.name: CheckResult(one.ok, one.reason) for one in found}
            for role, found in checks.items()
        },
    )


_TICK_SECONDS = 1.0
_TICKS = 60


class ProcessReading(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine says of the process; 0 where it does not."""

    memory_bytes: int = 0
    threads: int = 0


class ObservedProcess:
    def __init__(
        self,
        runtime: Runtime,
        version: str,
        read: Callable[[], ProcessReading] = ProcessReading,
    ) -> None:
        self._runtime = runtime
        self._version = version
        self._read = read
        self._started = runtime.clock.monotonic()
        self._delays: deque[float] = deque([0.0], maxlen=_TICKS)
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = asyncio.create_task(self._tick())

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])

    async def _tick(self) -> None:
        clock = self._runtime.clock
        while True:
            due = clock.monotonic() + _TICK_SECONDS
            await clock.sleep(_TICK_SECONDS)
            self._delays.append(max(0.0, clock.monotonic() - due))

    def families(self, ready: dict[str, bool]) -> Iterator[Family]:
        """`ready` by role."""
        info, readiness = family("process_info"), family("process_ready")
        for role, is_ready in ready.items():
            info.add(1, role=role, version=self._version)
            readiness.add(int(is_ready), role=role)
        yield from (info, readiness)
        reading = self._read()
        for name, value in (
            ("process_uptime_seconds", self._runtime.clock.monotonic() - self._started),
            ("process_cpu_seconds_total", self._runtime.processes.cpu_ns() / 1e9),
            ("process_memory_bytes", reading.memory_bytes),
            ("process_threads", reading.threads),
            ("process_loop_delay_seconds", self._delays[-1]),
            ("process_loop_delay_max_seconds", max(self._delays)),
        ):
            yield single(name, value)


class Probes:
    def __init__(
        self, process: ObservedProcess, roles: Sequence[ObservedRole], *, token: str = ""
    ) -> None:
        self._process = process
        self._roles = roles
        self._token = token.encode()

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/metrics", self._metrics),
            ]
        )

    async def metrics(self) -> str:
        checks = await ask(self._roles)
        families: list[Family] = list(
            self._process.families({role: all_ok(found) for role, found in checks.items()})
        )
        for role in self._roles:
            families += await role.families()
        return format_families(families)

    async def _health(self, _request: Request) -> Response:
        return JSONResponse({"alive": True, "roles": [role.role for role in self._roles]})

    async def _ready(self, request: Request) -> Response:
        if not self._may(request):
            return _refusal()
        found = describe(await ask(self._roles))
        return json_answer(found, 200 if found.ready else 503)

    async def _metrics(self, request: Request) -> Response:
        if not self._may(request):
            return _refusal()
        return PlainTextResponse(await self.metrics(), media_type=CONTENT_TYPE)

    def _may(self, request: Request) -> bool:
        if not self._token:
            return True
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token)
        return right and kind.lower() == "bearer"


def _refusal() -> Response:
    return JSONResponse(
        {"error": "send the token as Authorization: Bearer"},
        401,
        headers={"WWW-Authenticate": "Bearer"},
    )
