"""Leading and standby brokers on the simulated cluster: what was acknowledged is there, once."""

from __future__ import annotations

import pytest

from tests.sim import brokers


@pytest.mark.parametrize("seed", range(6))
def test_acknowledged_messages_survive_changes_of_the_leader(seed: int) -> None:
    check(brokers.run(seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
def test_many_changes_of_the_leader(seed: int) -> None:
    check(brokers.run(seed))


@pytest.mark.parametrize("seed", range(4))
def test_numbered_requests_are_applied_once_whoever_leads(seed: int) -> None:
    check_numbered(brokers.run(seed, numbered=True))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200, 300))
def test_numbered_requests_through_many_changes(seed: int) -> None:
    check_numbered(brokers.run(seed, numbered=True))


def check_numbered(done: brokers.Brokers) -> None:
    assert len(done.acknowledged) == brokers.BATCHES * brokers.BATCH_MESSAGES
    assert done.polled == done.acknowledged
    assert done.repeated > 0, "nothing was sent again"


def test_leaders_change() -> None:
    """The runs would prove nothing if the same broker led all the time."""
    assert len(set(brokers.run(0).leaders)) == 2


def test_a_seed_repeats_its_run() -> None:
    digests = {brokers.run(1).cluster.simulation.digest() for _ in range(2)}
    assert len(digests) == 1


def check(done: brokers.Brokers) -> None:
    assert len(done.acknowledged) == brokers.BATCHES * brokers.BATCH_MESSAGES
    stored = set(done.polled)
    assert len(stored) == len(done.polled), "something was stored twice"
    assert [p for p in done.polled if p not in done.unknown] == done.acknowledged
    assert stored <= set(done.acknowledged) | done.unknown, "something was invented"
