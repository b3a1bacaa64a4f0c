"""Which connections move to another worker, and how often."""

from __future__ import annotations

from itertools import pairwise
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.shards.assignment import NOBODY
from headrace.broker.shards.moving import (
    FORGET_SECONDS,
    PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    REQUESTS,
    Trail,
)


def ask(trail: Trail, *workers: str) -> None:
    for worker in workers:
        trail.on_request(worker)


def test_all_of_the_last_requests_are_for_one_other_worker() -> None:
    trail = Trail()
    ask(trail, *["b"] * (REQUESTS - 1))
    assert trail.destination(0.0) == NOBODY
    ask(trail, "b")
    assert trail.destination(0.0) == "b"


def test_who_uses_several_workers_stays() -> None:
    trail = Trail()
    for turn in range(20 * REQUESTS):
        ask(trail, "bc"[turn % 2])
        assert trail.destination(1e9) == NOBODY
    ask(trail, *["b"] * (REQUESTS - 1), NOBODY)
    assert trail.destination(1e9) == NOBODY
    ask(trail, *["b"] * (REQUESTS - 1))
    trail.on_here()
    ask(trail, "b")
    assert trail.destination(1e9) == NOBODY
    ask(trail, *[NOBODY] * 100)
    assert trail.destination(1e9) == NOBODY


def test_it_stays_longer_each_time() -> None:
    trail, now, stays = Trail(), 50.0, []
    for _ in range(12):
        ask(trail, *["b"] * REQUESTS)
        since = now
        while not trail.destination(now):
            now += 0.5
        stays.append(now - since)
        trail.on_try(now)
        assert trail.destination(now) == NOBODY
    doubled = [PAUSE_SECONDS * 2**n for n in range(11)]
    assert stays == [0.0, *(min(PAUSE_SECONDS_MAX, each) for each in doubled)]
    ask(trail, *["b"] * REQUESTS)
    trail.on_try(now + FORGET_SECONDS + 1)
    assert trail.pause == PAUSE_SECONDS


steps = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 40), st.floats(0.0, 20.0)),
    max_size=200,
)


@given(steps)
def test_whatever_it_asks_for_it_does_not_go_to_and_fro(
    pattern: list[tuple[str, int, float]],
) -> None:
    """One connection and its state, which travels with it."""
    trail, at, now = Trail(), "a", 0.0
    moves: list[float] = []
    lately: list[str] = []
    for target, requests, seconds in pattern:
        for _ in range(requests):
            now += seconds / requests
            ask(trail, NOBODY if target == at else target)
            lately = [*lately[1 - REQUESTS :], target]
            to = trail.destination(now)
            if to:
                assert lately == [to] * REQUESTS
                trail.on_try(now)
                moves.append(now)
                at = to
                trail = Trail(trail.tried, trail.pause)
    for first, second in pairwise(moves):
        assert second - first >= PAUSE_SECONDS
    for position, start in enumerate(moves):
        span = [each for each in moves[position:] if each - start <= FORGET_SECONDS]
        # n moves take at least 1 + 2 + ... + 2^(n-2) times the pause, up to the longest one.
        growing = log2(FORGET_SECONDS / PAUSE_SECONDS + 1) + 1
        assert len(span) <= growing + FORGET_SECONDS / PAUSE_SECONDS_MAX + 1
