"""One table says which HTTP status stands for which error."""

from __future__ import annotations

import pytest

from headrace.errors import (
    AlreadyExistsError,
    ConfigError,
    CorruptionError,
    HeadraceError,
    InvalidArgumentError,
    LocalProtocolError,
    NotFoundError,
    RemoteProtocolError,
    RequestError,
    ThrottledError,
    TooLargeError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.web.server.statuses import error_of, status_of


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (UnauthenticatedError, 401),
        (UnauthorizedError, 403),
        (NotFoundError, 404),
        (AlreadyExistsError, 409),
        (TooLargeError, 413),
        (InvalidArgumentError, 400),
        (RequestError, 400),
        (ConfigError, 400),
        (LocalProtocolError, 400),
        (RemoteProtocolError, 503),
        (UnavailableError, 503),
        (ThrottledError, 503),
        (CorruptionError, 503),
    ],
)
def test_every_error_has_a_status(kind: type[HeadraceError], status: int) -> None:
    assert status_of(kind("why")) == status


@pytest.mark.parametrize("status", [401, 403, 404, 409, 413, 400, 503])
def test_a_client_raises_what_the_server_meant(status: int) -> None:
    error = error_of(status, "why")
    assert (status_of(error), str(error)) == (status, "why")


def test_a_status_that_nobody_knows_is_the_callers_fault() -> None:
    assert type(error_of(421, "why")) is RequestError
