"""APPEND of 64 KiB batches over TCP on 1 and on 3 replicas, against bare loops.

    python -m benchmarks log_append          with PROFILE=path the data nodes write a cProfile

Data nodes, placement manager and bare servers (`bare_log.py`) are processes of their own. The limit
has the same copies and syncs: frames go from the socket to a file that is synced before the answer,
and with 3 replicas also to two others of its kind, one of which must have answered. Rounds of both
alternate and the median of each counts: a disk has moods.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.log_load import (
    Log,
    append_frame,
    connect,
    keep_appending,
    primary_port,
    row,
    start_bare,
    start_log,
)
from headrace.runtime.system import run as run_loop
from headrace.wire.sbp.messages import Range

SECONDS = 0.6
ROUNDS = 6


@dataclass(frozen=True)
class Shape:
    replicas: int
    connections: int
    in_flight: int  # per connection

    @property
    def name(self) -> str:
        what = f"append 64 KiB, {self.replicas} replica{'s' * (self.replicas > 1)}"
        return f"{what}, {self.connections} conn. x {self.in_flight}"


SHAPES = (Shape(1, 1, 1), Shape(1, 4, 4), Shape(3, 1, 1), Shape(3, 4, 4))


async def measure(log: Log, bare: int, shape: Shape) -> dict[str, Any]:
    """The first round warms up and does not count."""
    ranges: list[Range] = [await log.open_range() for _ in range(shape.connections)]
    numbers = range(2, 2 + shape.in_flight)
    ours, limits = [], []
    lanes = [
        (
            await connect(primary_port(each), hello=True),
            [append_frame(each, number) for number in numbers],
        )
        for each in ranges
    ]
    bare_lanes = [(await connect(bare, hello=False), frames) for _, frames in lanes]
    for _ in range(ROUNDS + 1):
        ours.append(await keep_appending(lanes, SECONDS))
        limits.append(await keep_appending(bare_lanes, SECONDS))
    for connection, _ in (*lanes, *bare_lanes):
        connection.transport.abort()
    return row(shape.name, ours[1:], limits[1:])


def run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for replicas in (1, 3):
        with ExitStack() as stack:
            log = start_log(stack, replicas)
            bare = start_bare(stack, replicas)
            rows += [
                run_loop(measure(log, bare, shape))
                for shape in SHAPES
                if shape.replicas == replicas
            ]
    return rows
