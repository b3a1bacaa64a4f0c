"""What is committed, what goes to a replica next, how far it is behind: as tables and models."""

from __future__ import annotations

import random

import pytest

from headrace.datanode.replication.commitment import (
    Commitment,
    Lags,
    Outgoing,
    ReplicaFeed,
    outgoing_of,
)
from headrace.errors import SealedError
from headrace.storage.layout import RangeKey
from tests.log_cluster import batch

KEY = RangeKey(1, 0)


@pytest.mark.parametrize(
    ("quorum", "durable", "held", "committed"),
    [
        (1, 7, {}, 7),
        (1, 7, {1: 0, 2: 0}, 7),
        (2, 7, {1: 5}, 5),
        (2, 5, {1: 7}, 5),  # the primary's own copy always counts
        (2, 7, {1: 5, 2: 6}, 6),
        (2, 7, {1: 6, 2: 0}, 6),
        (3, 7, {1: 6, 2: 3}, 3),
        (3, 9, {1: 6, 2: 3, 3: 7, 4: 1}, 6),
        (2, 7, {}, 0),
    ],
)
def test_what_is_committed(quorum: int, durable: int, held: dict[int, int], committed: int) -> None:
    commitment = Commitment.of(start=0, quorum=quorum, secondaries=held)
    commitment.on_durable(durable)
    for node_id, offset in held.items():
        commitment.on_held(node_id, offset)
    assert commitment.committed == committed


def test_commits_of_batches_with_many_records_do_not_get_stuck() -> None:
    """Upstream defect 3: only a batch's first offset was acknowledged."""
    commitment = Commitment.of(start=0, quorum=2, secondaries=[1, 2])
    for end in (10, 17, 18):
        assert not commitment.on_durable(end)
        assert commitment.on_held(1, end)
        assert commitment.committed == end


def test_what_was_committed_stays_committed() -> None:
    commitment = Commitment.of(start=5, quorum=2, secondaries=[1, 2])
    assert commitment.committed == 5
    commitment.on_durable(9)
    assert commitment.on_held(1, 8)
    assert not commitment.on_held(1, 6), "its disk came back shorter"
    assert commitment.committed == 8
    assert not commitment.on_held(2, 7)
    assert not commitment.on_durable(7), "told late"
    assert commitment.on_held(2, 9)
    assert commitment.committed == 9


def test_when_a_quorum_is_out_of_reach() -> None:
    three = Commitment.of(start=0, quorum=2, secondaries=[1, 2])
    assert [three.possible(without=n) for n in (0, 1, 2)] == [True, True, False]
    two = Commitment.of(start=0, quorum=2, secondaries=[1])
    assert [two.possible(without=n) for n in (0, 1)] == [True, False]


def test_lags() -> None:
    lags = Lags()
    lags.on_tick(0.0, 10, 10)
    assert lags.of(10, 5.0) == 0
    lags.on_tick(1.0, 20, 10)
    lags.on_tick(2.0, 30, 10)
    assert lags.of(10, 3.0) == 2.0
    assert lags.of(20, 3.0) == 1.0
    assert lags.of(30, 3.0) == 0
    lags.on_tick(3.0, 30, 30)
    assert lags.of(25, 4.0) == 1.0, "marks that everybody has passed are gone"


def test_lags_of_a_replica_that_never_catches_up_take_bounded_memory() -> None:
    lags = Lags()
    for second in range(10_000):
        lags.on_tick(float(second), second + 1, 0)
    assert lags.of(0, 10_000.0) == 10_000.0
    assert len(lags._marks) <= 256


# Feeds


def out(base: int, end: int, size: int = 10) -> Outgoing:
    return Outgoing(base, end, size, (b"x" * size,))


def feed() -> ReplicaFeed:
    return ReplicaFeed(KEY, 9, 0, 0)


def test_batches_leave_in_order_and_in_portions() -> None:
    one = feed()
    assert [one.push(out(n, n + 1), room=100) for n in range(5)] == [10] * 5
    assert one.queued_bytes == 50
    assert [b.base for b in one.take(25)] == [0, 1]
    assert [b.base for b in one.take(5)] == [2], "at least one"
    assert one.next_offset == 3
    assert [b.base for b in one.take(1000)] == [3, 4]
    assert one.take(1000) == []
    assert not one.ready()
    assert one.queued_bytes == 0


def test_what_does_not_fit_is_read_from_the_log() -> None:
    one = feed()
    one.push(out(0, 1), room=15)
    assert one.push(out(1, 2), room=5) == -10, "the queue goes too: it must end where the log ends"
    assert not one.ready()
    assert one.push(out(2, 3), room=15) == 10
    assert not one.ready(), "there is a gap before it"
    assert one.wants_log(log_next=3, log_durable=3)
    assert not one.wants_log(log_next=3, log_durable=0), "not on disk yet"
    assert one.refill(one.session, [out(0, 1), out(1, 2), out(2, 3)]) == 20, "the last is queued"
    assert not one.wants_log(log_next=3, log_durable=3)
    assert [b.base for b in one.take(1000)] == [0, 1, 2]
    assert not one.wants_log(log_next=3, log_durable=3)
    assert one.wants_log(log_next=4, log_durable=4), "nobody queued what the log has"


def test_a_rewind_makes_what_was_read_before_it_void() -> None:
    one = feed()
    for n in range(3):
        one.push(out(n, n + 1), room=100)
    one.take(1000)
    one.held = 2
    session = one.session
    assert one.rewind(1) == 0
    assert (one.next_offset, one.held) == (1, 1)
    assert one.refill(session, [out(0, 1)]) == 0
    assert one.refill(one.session, [out(0, 1), out(1, 2)]) == 10, "below what is wanted"
    assert one.rewind(0) == -10
    assert one.queued_bytes == 0


def test_a_new_connection_starts_at_what_was_confirmed() -> None:
    one = feed()
    for n in range(4):
        one.push(out(n, n + 1), room=100)
    one.take(15)
    one.take(15)
    one.held = 1
    one.told = 2
    one.absent_since = 3.0
    one.resume_at = 4.0
    one.restart()
    found: list[float | None] = [one.next_offset, one.told, one.absent_since, one.resume_at]
    assert found == [1, -1, None, 0.0]
    assert one.wants_log(log_next=4, log_durable=4)
    one.refill(one.session, [out(1, 2)])
    assert [b.base for b in one.take(1000)] == [1, 2, 3]


def test_a_feed_that_is_over_holds_nothing() -> None:
    one = feed()
    one.push(out(0, 1), room=100)
    one.push(out(1, 2), room=100)
    assert one.end(SealedError("over")) == -20
    assert not one.ready()
    assert not one.wants_log(log_next=2, log_durable=2)


def test_batches_of_a_log_come_out_as_they_are() -> None:
    pieces = [b"".join(batch(b"one", b"two")), b"".join(batch(b"three", base_offset=2))]
    first, second = outgoing_of([memoryview(b"".join(pieces))])
    assert (first.base, first.end, first.size) == (0, 2, len(pieces[0]))
    assert (second.base, second.end, second.size) == (2, 3, len(pieces[1]))
    assert b"".join(first.pieces) == pieces[0]
    assert b"".join(second.pieces) == pieces[1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_every_batch_arrives_once_per_session(seed: int) -> None:
    """Random pushes, reads, rewinds and losses against a log that is a list."""
    rng = random.Random(seed)
    one = feed()
    log: list[Outgoing] = []
    durable = 0
    received: list[int] = []  # the bases that the replica has stored

    def read() -> None:
        if one.wants_log(log_next=len(log), log_durable=durable):
            upto = min(durable, one.next_offset + rng.randint(1, 4))
            one.refill(one.session, log[one.next_offset : upto])

    for _ in range(400):
        match rng.randrange(6):
            case 0 | 1:
                log.append(out(len(log), len(log) + 1))
                one.push(log[-1], room=rng.choice([0, 15, 100]))
            case 2:
                durable = rng.randint(durable, len(log))
            case 3:
                read()
            case 4:
                for sent in one.take(rng.randint(1, 40)):
                    if sent.base == len(received):
                        received.append(sent.base)
                one.held = len(received)
            case 5:
                if rng.random() < 0.3:
                    one.restart()
    durable = len(log)
    while len(received) < len(log):
        read()
        taken = one.take(100)
        assert taken, "stuck"
        received.extend(sent.base for sent in taken if sent.base == len(received))
    assert received == list(range(len(log)))
    assert one.queued_bytes == 0
