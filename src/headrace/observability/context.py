"""Which request is being served, for whoever logs about it deep inside.

Setting it is one assignment for each request; it becomes text only in a log line.
"""

from __future__ import annotations

from contextvars import ContextVar

REQUEST_ID: ContextVar[tuple[int | str, int] | None] = ContextVar("request_id", default=None)
"""Who asked (the broker's client id, or a peer's address), and the number of the request."""


def request_text() -> str:
    """As logs show it, `client-number`; empty outside of a request."""
    request = REQUEST_ID.get()
    if request is None:
        return ""
    who, number = request
    return f"{who:08x}-{number}" if isinstance(who, int) else f"{who}-{number}"
