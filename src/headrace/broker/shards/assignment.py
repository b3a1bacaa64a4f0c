"""Which worker should lead which shard. Pure.

Shards that nobody leads go to whoever leads least. Then, one at a time, shards go from who leads
most to who leads least, until nobody has two more than another; neighbours go to different
workers. What an operator pinned stays where it is pinned while that worker lives. The first shard
stays with the coordinator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

NOBODY = ""


@dataclass(frozen=True, slots=True)
class Move:
    shard: int
    leader: str
    """Who leads it now, or NOBODY."""
    to: str


def plan(
    leaders: Sequence[str], workers: Sequence[str], pins: Mapping[int, str] | None = None
) -> list[Move]:
    """What to do next: all shards that nobody leads, or else one that should go elsewhere.

    `leaders` has the leader of each shard, `workers` those that live, in a fixed order.
    """
    pins = pins or {}
    load = dict.fromkeys(workers, 0)
    for leader in leaders:
        if leader in load:
            load[leader] += 1
    free = [shard for shard, leader in enumerate(leaders) if leader not in load]
    if free:
        return _place(free, load, pins)
    for shard, pinned in pins.items():
        if shard and pinned in load and leaders[shard] != pinned:
            return [Move(shard, leaders[shard], pinned)]
    return _level(leaders, load, pins)


def _place(free: Sequence[int], load: dict[str, int], pins: Mapping[int, str]) -> list[Move]:
    moves = []
    for shard in free:
        to = pins.get(shard, NOBODY)
        if to not in load:
            to = _least(load)
        if to:
            load[to] += 1
            moves.append(Move(shard, NOBODY, to))
    return moves


def _level(leaders: Sequence[str], load: Mapping[str, int], pins: Mapping[int, str]) -> list[Move]:
    # Whoever leads most may have nothing to give: all of it is pinned.
    givers = {leader for shard, leader in enumerate(leaders) if shard and pins.get(shard) != leader}
    most = max((one for one in load if one in givers), key=lambda one: load[one], default=NOBODY)
    least = _least(load)
    if not most or load[most] - load[least] < 2:
        return []
    movable = [
        shard
        for shard, leader in enumerate(leaders)
        if shard and leader == most and pins.get(shard) != most
    ]
    if not movable:
        return []
    # A topic's partitions are in shards that follow each other: those should have many leaders.
    near = len(load)

    def crowd(shard: int) -> int:
        around = leaders[max(0, shard - near) : shard + near + 1]
        return around.count(most) - around.count(least)

    turn = list(load).index(least)
    fitting = [shard for shard in movable if shard % near == turn]
    return [Move(max(fitting or movable, key=crowd), most, least)]


def _least(load: Mapping[str, int]) -> str:
    return min(load, key=lambda worker: load[worker], default=NOBODY)
