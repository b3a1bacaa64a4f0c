"""`/metrics`, `/health` and `/ready` of one process, whatever roles run in it.

`/health` answers while the event loop turns: restart a process whose does not. `/ready` says
whether every role here can serve, 503 with the reasons if not: send no traffic there. With a token
`/metrics` and `/ready` ask for `Authorization: Bearer`; `/health` says nothing worth one.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headrace.observability.exposition import CONTENT_TYPE, Family, format_families
from headrace.web.metrics.checks import Observed, all_ok, ask, describe
from headrace.web.metrics.process import ObservedProcess


class Probes:
    def __init__(
        self, process: ObservedProcess, roles: Sequence[Observed], *, token: str = ""
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
        return JSONResponse(found, 200 if found["ready"] else 503)

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
