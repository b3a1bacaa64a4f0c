"""Who should lead which shard."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.shards.assignment import NOBODY, Move, plan

WORKERS = ["a", "b", "c", "d"]


def _carry_out(
    leaders: list[str], workers: list[str], pins: dict[int, str] | None = None
) -> tuple[list[str], list[Move]]:
    """Until nothing is left to do."""
    leaders, done = list(leaders), []
    while moves := plan(leaders, workers, pins):
        for move in moves:
            assert move.leader in (leaders[move.shard], NOBODY)
            leaders[move.shard] = move.to
        done += moves
        assert len(done) < 1000, "it goes to and fro"
    return leaders, done


def test_free_shards_are_spread_at_once() -> None:
    leaders, done = _carry_out(["a", *[NOBODY] * 63], WORKERS)
    assert Counter(leaders) == dict.fromkeys(WORKERS, 16)
    assert len(done) == 63


def test_neighbours_go_to_different_workers() -> None:
    leaders, _ = _carry_out([NOBODY] * 8, WORKERS)
    assert leaders == [*WORKERS, *WORKERS]


def test_a_lost_workers_shards_are_spread_and_no_others_move() -> None:
    before, _ = _carry_out([NOBODY] * 64, WORKERS)
    after, done = _carry_out(before, ["a", "b", "d"])
    assert {move.shard for move in done} == {n for n, leader in enumerate(before) if leader == "c"}
    assert max(Counter(after).values()) - min(Counter(after).values()) <= 1


def test_a_joining_worker_gets_shards_one_at_a_time() -> None:
    before, _ = _carry_out([NOBODY] * 64, ["a", "b", "c"])
    assert len(plan(before, WORKERS)) == 1
    after, done = _carry_out(before, WORKERS)
    assert {move.to for move in done} == {"d"}
    assert Counter(after)["d"] == 16


def test_the_first_shard_stays_with_the_coordinator() -> None:
    leaders = ["a"] * 64
    after, done = _carry_out(leaders, WORKERS)
    assert after[0] == "a"
    assert all(move.shard for move in done)


def test_workers_that_join_one_by_one_get_neighbours_of_others() -> None:
    leaders = ["a"] * 64
    for count in (2, 3, 4):
        leaders, _ = _carry_out(leaders, WORKERS[:count])
        for first in range(0, 64, 8):
            assert len(set(leaders[first : first + 8])) == count, "of any eight partitions"


def test_a_pinned_shard_goes_and_stays_where_it_is_pinned() -> None:
    before, _ = _carry_out([NOBODY] * 64, WORKERS)
    pins = dict.fromkeys(range(1, 41), "b")
    after, _ = _carry_out(before, WORKERS, pins)
    assert all(after[n] == "b" for n in pins)
    again, _ = _carry_out(after, ["a", "c", "d"], pins)
    assert "b" not in again


def test_a_joining_worker_gets_shards_although_somebody_has_many_pinned() -> None:
    pins = dict.fromkeys(range(1, 41), "b")
    before, _ = _carry_out([NOBODY] * 64, ["a", "b", "c"], pins)
    after, done = _carry_out(before, WORKERS, pins)
    assert {move.to for move in done} == {"d"}
    assert Counter(after) == {"b": 40, "a": 8, "c": 8, "d": 8}


@given(
    st.lists(st.sampled_from([NOBODY, "a", "b", "c", "x", "y"]), min_size=1, max_size=64),
    st.lists(st.sampled_from(WORKERS), min_size=1, unique=True),
    st.dictionaries(st.integers(0, 63), st.sampled_from([*WORKERS, "z"])),
)
def test_it_always_ends_with_everything_led_by_the_living(
    leaders: list[str], workers: list[str], pins: dict[int, str]
) -> None:
    pins = {shard: worker for shard, worker in pins.items() if shard < len(leaders)}
    after, _ = _carry_out(leaders, workers, pins)
    assert set(after) <= set(workers)


def test_nobody_lives() -> None:
    assert plan(["a", "b"], []) == []


def test_neighbours_part_when_workers_come() -> None:
    leaders, _ = _carry_out(["a"] * 64, ["a", "b", "c"])
    assert all(len(set(leaders[at : at + 6])) == 3 for at in range(1, 58))
