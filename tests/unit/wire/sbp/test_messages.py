"""What the protocol says beyond the layout of its tables."""

from __future__ import annotations

import pytest

from headrace.wire.sbp import messages as m
from headrace.wire.sbp.flat import Message, encode
from headrace.wire.sbp.messages import ack_quorum


@pytest.mark.parametrize(("replicas", "quorum"), [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)])
def test_the_ack_quorum_is_a_majority_and_both_of_two(replicas: int, quorum: int) -> None:
    assert ack_quorum(replicas) == quorum


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (
            m.LeaseRequest(
                3000, m.LeaseAction.ACQUIRE, "broker", "b-1", 10_000, "10.0.0.1:8090", 7
            ),
            "1c000000120020000c0000001000140018001c000400000000000000180000000700000000000000"
            "b80b0000100000001800000010270000180000000600000062726f6b6572000003000000622d3100"
            "0d00000031302e302e302e313a3830393000",
        ),
        (
            m.LeaseResponse(True, 7, "b-1", 10_000, "10.0.0.1:8090", m.OK),
            "1400000010001d001c0004000c001000140018001000000007000000000000001400000010270000"
            "14000000280000000100000003000000622d31000d00000031302e302e302e313a38303930000400"
            "0400000006000000",
        ),
    ],
    ids=["LeaseRequest", "LeaseResponse"],
)
def test_a_lease_of_one_name_is_written_as_ever(message: Message, written: str) -> None:
    """As by peers that know of one name alone."""
    assert encode(message).hex() == written
