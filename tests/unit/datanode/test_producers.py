from __future__ import annotations

import pytest

from headrace.datanode.producers import Producers
from headrace.errors import InvalidArgumentError
from headrace.wire.sbp.messages import ProducerState


def test_a_stored_batch_is_found_again() -> None:
    producers = Producers(10, 3)
    assert producers.find(1, 0, 5) is None
    producers.on_stored(1, 5, 100)
    producers.on_stored(1, 7, 105)
    assert producers.find(1, 0, 5) == 100
    assert producers.find(1, 5, 2) == 105
    assert producers.find(1, 7, 1) is None
    assert producers.find(2, 0, 5) is None, "another producer"


@pytest.mark.parametrize("sequence", [6, 8, 0])
def test_gaps_and_unknown_repetitions_are_refused(sequence: int) -> None:
    producers = Producers(10, 3)
    producers.on_stored(1, 7, 100)
    with pytest.raises(InvalidArgumentError):
        producers.find(1, sequence, 3)


def test_the_table_is_bounded() -> None:
    producers = Producers(2, 2)
    for next_sequence in (1, 2, 3):
        producers.on_stored(1, next_sequence, next_sequence)
    with pytest.raises(InvalidArgumentError):
        producers.find(1, 0, 1)  # the oldest of three batches is forgotten
    producers.on_stored(2, 1, 50)
    producers.on_stored(3, 1, 60)
    assert producers.find(1, 2, 1) is None, "the producer silent longest is forgotten"
    assert producers.find(2, 0, 1) == 50


def test_a_failed_batch_may_be_sent_again() -> None:
    producers = Producers(2, 2)
    producers.on_stored(1, 1, 10)
    producers.on_stored(1, 2, 11)
    producers.on_failed(1, 2, 11)
    assert producers.find(1, 1, 1) is None
    producers.on_failed(1, 1, 99)
    assert producers.find(1, 0, 1) == 10, "only the batch that failed"
    producers.on_failed(1, 1, 10)
    assert producers.find(1, 5, 1) is None


def test_the_table_travels() -> None:
    producers = Producers(5, 5)
    producers.on_stored(1, 1, 10)
    producers.on_stored(2, 4, 11)
    producers.on_stored(1, 2, 15)
    copy = Producers(5, 5)
    copy.merge(producers.states(end=15))
    assert copy.find(1, 0, 1) == 10
    assert copy.find(2, 0, 4) == 11
    assert copy.find(1, 1, 1) is None, "at or above the end nothing was stored"


def test_what_another_remembers_longer_does_not_change_what_comes_next() -> None:
    ours = Producers(10, 64)
    ours.on_stored(9, 6, 50)
    ours.on_stored(9, 7, 60)
    states = [
        ProducerState(producer_id=9, next_sequence=n, last_base_offset=10 * (n - 1))
        for n in (5, 6, 7)
    ]
    ours.merge(states)
    assert ours.find(9, 4, 1) == 40
    assert ours.find(9, 6, 1) == 60
    assert ours.find(9, 7, 1) is None


def test_what_did_not_become_part_of_the_stream_may_be_sent_again() -> None:
    table = Producers(10, 64)
    table.on_stored(9, 1, 0)
    table.on_stored(9, 2, 10)
    table.on_stored(8, 1, 11)
    table.forget_from(10)
    assert table.find(9, 0, 1) == 0
    assert table.find(9, 1, 1) is None
    assert table.states(100) == (ProducerState(producer_id=9, next_sequence=1, last_base_offset=0),)
