from __future__ import annotations

import struct

import pytest

from headrace.datanode.append.producers import Producers, decode_producers, encode_producers
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


def test_tables_join_in_any_order() -> None:
    """Facts of one log: whoever knows more wins, whoever knows less takes nothing back."""
    newer = [state(9, 14, 40), state(9, 15, 50), state(8, 3, 45)]
    older = [state(9, 13, 30), state(9, 14, 40), state(8, 2, 35)]
    for tables in ((newer, older), (older, newer), (older, newer, older)):
        table = Producers(10, 64)
        for each in tables:
            table.merge(each)
        assert table.find(9, 15, 1) is None
        assert table.find(9, 12, 1) == 30
        assert table.find(8, 3, 1) is None
        with pytest.raises(InvalidArgumentError):
            table.find(9, 12, 5)
        assert [s.last_base_offset for s in table.states() if s.producer_id == 9] == [30, 40, 50]


def test_the_last_batch_is_the_one_with_the_highest_offset() -> None:
    """A producer that was forgotten may have begun anew."""
    table = Producers(10, 64)
    table.merge([state(9, 100, 10), state(9, 1, 20)])
    assert table.find(9, 1, 1) is None
    table.on_stored(9, 100, 30)
    assert table.find(9, 100, 1) is None
    assert table.find(9, 99, 1) == 30


def test_who_may_have_gone_on_is_not_refused() -> None:
    table = Producers(2, 64)
    table.merge([state(9, 5, 10), state(8, 5, 11)])
    table.doubt_all()
    assert not table.whole
    assert table.find(9, 4, 1) == 10, "a fact stays one"
    assert table.find(9, 77, 1) is None
    assert table.states() == (), "the next range shall not take it for the last"
    table.on_stored(9, 78, 99)
    with pytest.raises(InvalidArgumentError):
        table.find(9, 90, 1)
    assert {s.producer_id for s in table.states()} == {9}
    table.on_stored(7, 1, 100)
    assert table.find(8, 3, 1) is None, "forgotten"


def test_what_is_cut_off_is_not_told() -> None:
    table = Producers(10, 64)
    for base in (0, 10, 20):
        table.on_stored(9, base + 1, base)
    assert [s.last_base_offset for s in table.states(end=20)] == [0, 10]


@pytest.mark.parametrize("states", [[], [(1, 2, 3)], [(1 << 62, 5, 6), (-1, 0, 1 << 62)]])
def test_a_table_is_kept_as_bytes(states: list[tuple[int, int, int]]) -> None:
    table = tuple(state(*each) for each in states)
    data = encode_producers(77, table)
    assert decode_producers(data) == ((77, table) if states else (0, ()))
    assert bool(data) is bool(states), "nothing known needs no file"


def state(producer_id: int, next_sequence: int, base: int) -> ProducerState:
    return ProducerState(producer_id, next_sequence, base)


def test_another_batch_that_ends_there_is_no_repetition() -> None:
    """It used to be answered as stored, and was not."""
    producers = Producers(10, 3)
    producers.on_stored(1, 2, 100, records=2, crc=77)
    assert producers.find(1, 0, 2, 77) == 100
    for sequence, count, crc in ((1, 1, 77), (0, 2, 78), (-1, 3, 77)):
        with pytest.raises(InvalidArgumentError, match="another batch"):
            producers.find(1, sequence, count, crc)
    copy = Producers(10, 3)
    copy.merge([ProducerState(1, 2, 100)])
    assert copy.find(1, 0, 2, 78) == 100, "who told it knew no more"
    copy.merge(producers.states())
    with pytest.raises(InvalidArgumentError):
        copy.find(1, 0, 2, 78)


def test_the_table_of_an_earlier_release_is_read() -> None:
    data = struct.pack("<q", 77) + struct.pack("<qqq", 9, 4, 70) + struct.pack("<qqq", 9, 5, 74)
    assert decode_producers(data) == (77, (ProducerState(9, 4, 70), ProducerState(9, 5, 74)))
