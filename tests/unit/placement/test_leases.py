from __future__ import annotations

import pytest

from headrace.errors import InvalidArgumentError
from headrace.placement.leases import LeaseDecision, Leases
from headrace.placement.metadata.records import LeaseRecord, Put


class Desk:
    """Leases with the shell's part: operations are applied before the answer."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.written: list[LeaseRecord] = []

    def _carry_out(self, decision: LeaseDecision) -> tuple[bool, int, str]:
        for operation in decision.operations:
            assert isinstance(operation, Put)
            assert isinstance(operation.record, LeaseRecord)
            self.written.append(operation.record)
            self.leases.records[operation.record.name] = operation.record
        self.leases.on_decided(decision)
        return decision.granted, decision.record.epoch, decision.record.holder

    def acquire(
        self, holder: str, now_ms: int, *, epoch: int = -1, duration_ms: int = 100
    ) -> tuple[bool, int, str]:
        return self._carry_out(
            self.leases.acquire(
                "broker",
                holder=holder,
                duration_ms=duration_ms,
                address="x:1",
                epoch=epoch,
                now_ms=now_ms,
            )
        )

    def release(self, holder: str, epoch: int) -> tuple[bool, int, str]:
        return self._carry_out(self.leases.release("broker", holder=holder, epoch=epoch))


def test_a_held_lease_is_refused_to_others() -> None:
    desk = Desk()
    assert desk.acquire("a", 0) == (True, 1, "a")
    assert desk.acquire("b", 99) == (False, 1, "a")
    assert desk.acquire("b", 100) == (True, 2, "b"), "expired"


def test_renewal_keeps_the_epoch_and_writes_nothing() -> None:
    desk = Desk()
    desk.acquire("a", 0)
    assert desk.acquire("a", 90, epoch=1) == (True, 1, "a")
    assert len(desk.written) == 1
    assert desk.acquire("b", 180) == (False, 1, "a"), "the renewal counts from its own time"


def test_a_late_renewal_succeeds_while_nobody_came_between() -> None:
    desk = Desk()
    desk.acquire("a", 0)
    assert desk.acquire("a", 500, epoch=1) == (True, 1, "a")
    assert desk.acquire("b", 650)[0]
    assert desk.acquire("a", 700, epoch=1) == (False, 2, "b")


def test_a_new_incarnation_of_the_holder_gets_the_next_epoch_at_once() -> None:
    desk = Desk()
    desk.acquire("a", 0)
    assert desk.acquire("a", 1) == (True, 2, "a")
    assert desk.acquire("a", 2, epoch=1) == (False, 2, "a"), "the older incarnation is over"
    assert desk.acquire("a", 3, epoch=2) == (True, 2, "a")


def test_release_frees_the_lease_and_keeps_the_epoch() -> None:
    desk = Desk()
    desk.acquire("a", 0)
    assert desk.release("b", 1)[0] is False
    assert desk.release("a", 0)[0] is False
    assert desk.release("a", 1)[0] is True
    assert desk.release("a", 1)[0] is True, "again"
    assert desk.acquire("b", 1) == (True, 2, "b")


def test_an_epoch_that_was_never_given_is_refused() -> None:
    assert Desk().acquire("a", 0, epoch=7) == (False, 0, "")


def test_a_restart_runs_the_lease_for_its_whole_duration_again() -> None:
    leases = Leases(
        records={"broker": LeaseRecord(name="broker", epoch=4, holder="a", duration_ms=50)}
    )
    leases.on_recovered(1000)
    assert leases.held("broker", 1049)
    assert not leases.held("broker", 1050)
    other = leases.acquire("broker", holder="b", duration_ms=50, address="", epoch=-1, now_ms=1049)
    assert not other.granted


@pytest.mark.parametrize(
    ("name", "holder", "duration_ms"),
    [("", "a", 10), ("n", "", 10), ("n", "a", 0), ("n", "a", 10**9), ("n" * 300, "a", 10)],
)
def test_invalid_requests(name: str, holder: str, duration_ms: int) -> None:
    with pytest.raises(InvalidArgumentError):
        Leases().acquire(
            name, holder=holder, duration_ms=duration_ms, address="", epoch=-1, now_ms=0
        )
