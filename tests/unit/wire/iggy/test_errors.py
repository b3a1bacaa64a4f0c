"""Numbers and classes meet both ways."""

from __future__ import annotations

import pytest

from headrace import errors
from headrace.wire.iggy import refusals
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import (
    DecodeError,
    IggyError,
    Status,
    error_of,
    name_of,
)
from headrace.wire.iggy.refusals import status_of


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


def test_every_refusal_has_a_number_of_its_own() -> None:
    found = {
        cls
        for cls in vars(refusals).values()
        if isinstance(cls, type) and cls.__module__ == refusals.__name__
    }
    assert found
    assert found <= refusals._STATUS.keys()


@pytest.mark.parametrize(
    ("error", "in_a", "elsewhere"),
    [
        (refusals.StreamNotFoundError(stream="shop"), 1010, 1009),
        (refusals.StreamNotFoundError(stream=7), 1009, 1009),
        (refusals.TopicNotFoundError(topic="orders"), 2011, 2010),
        (refusals.GroupNotFoundError(group="readers"), 5003, 5000),
        (refusals.ConsumerNotResolvedError(), 3021, 3022),
    ],
)
def test_dialect_a_has_numbers_of_its_own(
    error: errors.HeadraceError, in_a: int, elsewhere: int
) -> None:
    assert status_of(error, Dialect.A) == in_a
    assert {status_of(error, dialect) for dialect in (Dialect.B1, Dialect.B2, Dialect.C)} == {
        elsewhere
    }
