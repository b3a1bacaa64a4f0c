"""Status codes: what we emit, what we accept, what an error says after crossing the wire."""

from __future__ import annotations

import pytest

from headrace import errors as root
from headrace.wire.sbp import errors
from headrace.wire.sbp.errors import error_of, raise_for_status, status_of
from headrace.wire.sbp.flat import decode, encode
from headrace.wire.sbp.messages import PlacementManager, PlacementManagerNode, Status

# Condition, code to emit, codes to accept, class, retryable: the recommended set of the reference.
CONDITIONS = [
    (root.UnavailableError, 1, [1, 1500, 2500], True),
    (root.InvalidArgumentError, 2, [2, 1400], False),
    (errors.UnsupportedError, 3, [3, 1501, 2501, 1498, 1499], False),
    (root.NotLeaderError, 5, [5, 1503], True),
    (root.NotFoundError, 1404, [1404, 1488], False),
    (root.RangeNotFoundError, 1462, [1462, 1510], True),
    (root.SealedError, 1460, [1460], True),
    (root.OffsetOverflowError, 1461, [1461], True),
    (root.OffsetOutOfRangeError, 1463, [1463], False),
    (errors.AlreadyDurableError, 1464, [1464], True),
    (errors.AppendPendingError, 1465, [1465], True),
    (errors.AppendGapError, 1466, [1466], True),
    (errors.NotPrimaryError, 2502, [2502], True),
    (root.CorruptionError, 2503, [2503], False),
    (root.NotEnoughNodesError, 1502, [1502], True),
    (errors.SealUnansweredError, 1511, [1511], True),
    (errors.QuorumError, 1479, [1479], True),
    (root.ThrottledError, 1429, [1429], True),
    (root.TooLargeError, 1413, [1413, 1431], False),
    (root.FencedError, 1489, [1489], False),
    (root.UnexpectedOffsetError, 1412, [1412], False),
    (root.UnauthenticatedError, 1401, [1401], False),
    (root.UnauthorizedError, 1403, [1403], False),
    (root.AlreadyExistsError, 1409, [1409], False),
    (root.DiskFullError, 2507, [2507], False),
]


@pytest.mark.parametrize(("cls", "emitted", "accepted", "retryable"), CONDITIONS)
def test_both_directions(
    cls: type[root.HeadraceError], emitted: int, accepted: list[int], retryable: bool
) -> None:
    assert status_of(cls("why")).code == emitted
    assert emitted in accepted
    for code in accepted:
        error = error_of(Status(code, "why"))
        assert type(error) is cls
        assert error.retryable is retryable
        assert error.message == "why"


def test_every_class_of_the_table_comes_back_as_itself_or_says_why_not() -> None:
    ambiguous = {root.HeadraceError, root.RequestError, root.RemoteProtocolError}
    for cls in errors.STATUS:
        found = type(error_of(status_of(cls("x"))))
        assert found is cls or cls in ambiguous, cls


def test_a_subclass_emits_its_nearest_ancestor() -> None:
    class Special(root.SealedError): ...

    assert status_of(Special("x")).code == 1460
    assert status_of(root.LockedError("x")).code == 1  # storage trouble without a code of its own


def test_a_deadline_is_unknown_with_a_text_that_says_timeout() -> None:
    status = status_of(root.DeadlineError("quorum not reached in time"))
    assert status.code == 1
    assert status.message.startswith("timeout")
    assert type(error_of(status)) is root.DeadlineError
    assert type(error_of(Status(1482, "x"))) is root.DeadlineError
    assert status_of(root.DeadlineError("timeout")).message == "timeout"


@pytest.mark.parametrize("code", [0, 1200, 1204])
def test_success(code: int) -> None:
    raise_for_status(Status(code))
    raise_for_status(None)
    assert errors.is_success(Status(code))
    assert errors.is_success(None)


def test_unknown_codes_are_retryable_unless_they_blame_the_caller() -> None:
    assert error_of(Status(1599, "x")).retryable
    assert error_of(Status(-7, "x")).retryable
    blamed = error_of(Status(1444, "x"))
    assert isinstance(blamed, root.RequestError)
    assert not blamed.retryable
    assert blamed.data["code"] == 1444


def test_data_travels_in_the_detail() -> None:
    status = status_of(
        root.UnexpectedOffsetError("wrong base", expected=7, found=9, range=object())
    )
    with pytest.raises(root.UnexpectedOffsetError) as caught:
        raise_for_status(decode(Status, encode(status)), stream_id=3)
    assert caught.value.data == {"expected": 7, "found": 9, "stream_id": 3}


def test_the_leader_travels_as_a_placement_manager_table() -> None:
    status = status_of(root.NotLeaderError("ask them", leader="pm-2:12378"))
    assert decode(PlacementManager, status.detail) == PlacementManager(
        (PlacementManagerNode(advertise_addr="pm-2:12378", is_leader=True),)
    )
    assert error_of(status).data == {"leader": "pm-2:12378"}
    assert error_of(status_of(root.NotLeaderError("?"))).data == {"leader": ""}
    followers = PlacementManager(
        (PlacementManagerNode("a", "a:1"), PlacementManagerNode("b", "b:1", True))
    )
    told = {"leader": "b:1", "managers": followers.nodes}
    assert error_of(Status(1503, "", encode(followers))).data == told
    assert error_of(status_of(root.NotLeaderError("?", **told))).data == told


@pytest.mark.parametrize(
    "detail", [b"\xff" * 9, b"\x81\xa1k\xc0", b"\x93\x01\x02\x03", b"x" * 9999]
)
def test_foreign_details_never_hide_the_error(detail: bytes) -> None:
    assert type(error_of(Status(1460, "x", detail))) is root.SealedError
    assert type(error_of(Status(5, "x", detail))) is root.NotLeaderError


def test_texts_and_data_are_bounded_and_encodable() -> None:
    status = status_of(root.SealedError("\ud800" + "x" * 99_999, note="y" * 99_999))
    assert len(encode(status)) < 8192
    assert status_of(root.SealedError("x", big=1 << 80)).detail == b""
