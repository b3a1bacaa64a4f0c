"""`/api/v1/session` (log in, who am I, log out) and `/api/v1/events/stream` (what changes)."""

from __future__ import annotations

from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from headrace.errors import InvalidArgumentError, ThrottledError
from headrace.web.broker_api.types import Rights, SessionInfo, SessionStart
from headrace.web.server.endpoints import Endpoint
from headrace.web.server.exchange import Text, json_answer
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

PATH = "/api/v1/session"
STREAM_PATH = "/api/v1/events/stream"
EVENT_TOPICS_MAX = 32
_TOPICS = Text(
    "topics",
    "overview, topics, streams, groups, cluster, alerts, problems, pipeline/<name>,"
    " with commas between.",
    pattern="^[a-z]+(,[a-z]+){0,31}$",
    required=True,
)


def endpoints(logins: Logins, live: Live) -> list[Endpoint]:
    async def log_in(request: Request, wanted: SessionStart) -> Response:
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
        topics = list(dict.fromkeys(_TOPICS.read(request).split(",")))
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
        Endpoint(
            "POST",
            PATH,
            log_in,
            "Log in: sets the cookie of a session. Needs the header X-Headrace-Page.",
            login=False,
            first=check_origin,
            answer=SessionInfo,
        ),
        Endpoint(
            "GET",
            PATH,
            show,
            "Who is logged in and what they may do; nothing (204) for nobody.",
            login=False,
            answer=SessionInfo,
        ),
        Endpoint(
            "DELETE", PATH, log_out, "Log out. Needs the header X-Headrace-Page.", login=False
        ),
        Endpoint(
            "GET",
            STREAM_PATH,
            stream,
            "Server-sent events: the newest value of each topic of events, when it changes.",
            query=(_TOPICS,),
            media_type="text/event-stream",
        ),
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
