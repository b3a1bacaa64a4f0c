"""Spans of the requests that carry messages. Used only while traces are on.

A producer that puts a W3C `traceparent` into the user headers of a batch's first message becomes
the parent of its SEND; who polls the message finds it there and goes on. Where no header can travel
(between broker and data node) spans name the SBP stream and the offsets instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.broker.core import Broker
from headrace.broker.sessions.sessions import Session
from headrace.errors import HeadraceError
from headrace.observability import tracing
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.batch import user_headers_at
from headrace.wire.iggy.messages import messages as m
from headrace.wire.iggy.user_headers import decode_headers

_TRACEPARENT = tracing.TRACEPARENT.encode()

TRACED = {
    c.SEND_MESSAGES.code: ("headrace.broker.send", tracing.Kind.PRODUCER),
    c.POLL_MESSAGES.code: ("headrace.broker.poll", tracing.Kind.CONSUMER),
    c.CLOSE.code: ("headrace.broker.close_window", tracing.Kind.PRODUCER),
}


async def traced(
    handler: Callable[[Broker, Session, Any], Awaitable[Any]],
    broker: Broker,
    session: Session,
    command: c.AnyCommand,
    request: Any,
) -> Any:
    """Call the handler inside a span."""
    name, kind = TRACED[command.code]
    parent = parent_of(request) if isinstance(request, m.SendMessages) else ""
    span = tracing.begin(
        name, kind=kind, parent=parent, client=session.client_id, dialect=session.dialect.value
    )
    error = ""
    try:
        response = await handler(broker, session, request)
        span.set(**_told(broker, request, response))
        return response
    except HeadraceError as failure:
        error = str(failure)
        raise
    finally:
        span.end(error=error)


def parent_of(request: m.SendMessages) -> str:
    """The traceparent in the user headers of the first message, if there is one."""
    if not request.count:
        return ""
    try:
        headers = decode_headers(user_headers_at(request.area, 0))
    except HeadraceError:
        return ""  # not the place to refuse headers
    found = next((one.value for one in headers if one.key == _TRACEPARENT), b"")
    return found.decode("ascii", "replace")


def _told(broker: Broker, request: Any, response: Any) -> dict[str, Any]:
    if isinstance(request, m.SendMessages):
        return {"topic": _topic(broker, request), "messages": request.count}
    if isinstance(request, m.PollMessages):
        return {
            "topic": _topic(broker, request),
            "partition": response.partition,
            "messages": response.count,
        }
    return {}


def _topic(broker: Broker, request: m.SendMessages | m.PollMessages) -> str:
    topic = broker.catalogue.find_topic(request.stream, request.topic)
    stream = None if topic is None else broker.catalogue.stream_by_uid(topic.stream_uid)
    return "" if topic is None or stream is None else f"{stream.name}/{topic.name}"
