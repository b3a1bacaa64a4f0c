"""Numbers and classes meet both ways."""

from __future__ import annotations

import pytest

from headrace import errors
from headrace.wire.iggy.errors import (
    DecodeError,
    IggyError,
    Status,
    error_of,
    name_of,
    status_of,
)


@pytest.mark.parametrize("code", [code for code in Status if code is not Status.OK])
def test_every_number_survives_the_way_there_and_back(code: Status) -> None:
    error = error_of(code, stream="s")
    assert isinstance(error, IggyError)
    assert status_of(error) == error.code == code
    assert str(error) == f"{code.name.lower()} (stream='s')"


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        (Status.STREAM_ID_NOT_FOUND, errors.NotFoundError),
        (Status.TOPIC_NAME_ALREADY_EXISTS, errors.AlreadyExistsError),
        (Status.INVALID_CREDENTIALS, errors.UnauthenticatedError),
        (Status.UNAUTHORIZED, errors.UnauthorizedError),
        (Status.TOO_BIG_MESSAGE_PAYLOAD, errors.TooLargeError),
        (Status.INVALID_OFFSET, errors.OffsetOutOfRangeError),
        (Status.INVALID_STREAM_NAME, errors.InvalidArgumentError),
        (Status.TOO_MANY_PARTITIONS, errors.InvalidArgumentError),
        (Status.STALE_CLIENT, errors.UnavailableError),
    ],
)
def test_clients_can_catch_the_taxonomy(code: Status, cls: type[Exception]) -> None:
    assert isinstance(error_of(code), cls)


def test_only_what_may_pass_is_retryable() -> None:
    retryable = {code for code in Status if code and error_of(code).retryable}
    assert retryable == {
        Status.DISCONNECTED,
        Status.STALE_CLIENT,
        Status.NOT_CONNECTED,
        Status.CLIENT_NOT_FOUND,
        Status.CONNECTION_CLOSED,
        Status.TASK_TIMEOUT,
        Status.WINDOWS_LIMIT_REACHED,
    }


def test_unknown_numbers_are_still_errors() -> None:
    assert name_of(123456) == "error_123456"
    assert error_of(123456).code == 123456


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFoundError(), 20),
        (errors.UnauthenticatedError(), 40),
        (errors.UnauthorizedError(), 41),
        (errors.OffsetOutOfRangeError(), 4100),
        (errors.InvalidArgumentError(), 3),
        (errors.NotLeaderError(), 8),
        (errors.FencedError(), 8),
        (errors.DeadlineError(), 12001),
        (errors.ThrottledError(), 12001),
        (errors.DiskFullError(), 13000),
        (errors.RemoteProtocolError(), 3),
        (DecodeError(Status.INVALID_UTF8), 81),
        (errors.HeadraceError(), 1),
    ],
)
def test_errors_of_the_domain_have_numbers(error: errors.HeadraceError, code: int) -> None:
    assert status_of(error) == code
