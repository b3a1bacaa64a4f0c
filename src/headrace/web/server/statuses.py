"""Which HTTP status stands for which error, both ways: the server's edge and the command line."""

from __future__ import annotations

from headrace.errors import (
    AlreadyExistsError,
    ConfigError,
    HeadraceError,
    LocalProtocolError,
    NotFoundError,
    RequestError,
    TooLargeError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
)

# The first row that fits counts, so a subclass stands before its base.
_STATUSES: tuple[tuple[type[HeadraceError], int], ...] = (
    (UnauthenticatedError, 401),
    (UnauthorizedError, 403),
    (NotFoundError, 404),
    (AlreadyExistsError, 409),
    (TooLargeError, 413),
    (RequestError, 400),
    (ConfigError, 400),
    (LocalProtocolError, 400),  # what was asked for cannot be said to the broker
    (UnavailableError, 503),
    (HeadraceError, 503),
)


def status_of(error: Exception) -> int:
    return next(status for kind, status in _STATUSES if isinstance(error, kind))


def error_of(status: int, text: str) -> HeadraceError:
    """What a client raises for an answer with this status."""
    kind = next((kind for kind, known in _STATUSES if known == status), RequestError)
    return kind(text)
