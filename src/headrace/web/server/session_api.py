"""`/api/v1/session` (log in, who am I, log out) and `/api/v1/events/stream` (what changes)."""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from headrace.errors import InvalidArgumentError, ThrottledError
from headrace.web.broker_api.types import Rights, SessionInfo, SessionStart
from headrace.web.server.exchange import json_answer, read_body
from headrace.web.server.live import LISTENERS_MAX, Live
from headrace.web.server.logins import (
    COOKIE,
    SESSION_SECONDS,
    Credentials,
    Login,
    Logins,
    check_origin,
    host_of,
)
from headrace.web.stram.routes import AddRoute

PATH = "/api/v1/session"
STREAM_PATH = "/api/v1/events/stream"
EVENT_TOPICS_MAX = 32


def routes(add: AddRoute, logins: Logins, live: Live) -> list[Route]:
    async def log_in(request: Request) -> Response:
        check_origin(request)
        wanted = await read_body(request, SessionStart)
        credentials = Credentials(wanted.username, wanted.password, host_of(request))
        login = await logins.verify(credentials)
        answer = json_answer(session_info(login), 201)
        answer.set_cookie(
            COOKIE,
            logins.sessions.open(credentials),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def log_out(request: Request) -> Response:
        check_origin(request)
        logins.sessions.end(request.cookies.get(COOKIE, ""))
        answer = Response(status_code=204)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    async def show(request: Request) -> Response:
        """Nobody is no error here: a page asks this before it shows a login."""
        if "authorization" not in request.headers and not logins.has_session(request):
            return Response(status_code=204)
        return json_answer(session_info(await logins.check(request)))

    async def stream(request: Request) -> Response:
        topics = list(dict.fromkeys(request.query_params.get("topics", "").split(",")))
        if not topics[0] or len(topics) > EVENT_TOPICS_MAX:
            raise InvalidArgumentError("topics names what to send, with commas between")
        if live.full:
            raise ThrottledError(f"at most {LISTENERS_MAX} pages are fed at a time")
        return StreamingResponse(
            live.frames(lambda: logins.check(request), topics),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    return [
        Route(PATH, log_in, methods=["POST"], name=PATH),
        Route(PATH, log_out, methods=["DELETE"], name=PATH),
        Route(PATH, show, methods=["GET"], name=PATH),
        add(STREAM_PATH, stream),
    ]


def session_info(login: Login) -> SessionInfo:
    permissions = login.permissions
    everywhere = None if permissions is None else permissions.everywhere
    names = Rights.__struct_fields__
    rights = Rights(**{name: bool(everywhere and getattr(everywhere, name)) for name in names})
    return SessionInfo(
        username=login.username,
        may_manage=login.may_manage,
        rights=rights,
        version=version("headrace"),
    )
