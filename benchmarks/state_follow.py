"""How long after its writer another process knows a change of control state.

    python -m benchmarks state_follow

A StateLog is written by this process, one event after the other, at a fixed pace; followers, each
in a process of its own, note when `wait_applied` tells them of it. Placement manager and data nodes
are processes too. The figure is the time from the append until the last follower knows the event,
the limit the time until the writer is answered, each the median; p50 and p99 are of what lies
between the two: from the answer of the writer until the last follower knows. That is what a change
costs more which is answered when another process knows it: 0 where the followers were first.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from bisect import bisect_left
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.log_load import Log, start_log
from headrace.runtime.system import run as run_loop
from headrace.runtime.system import system_runtime
from headrace.sbp_client.state_follower import StateFollower
from headrace.sbp_client.state_log import StateLog

EVENTS = 1000
WARM = 50  # events that do not count
PACE_SECONDS = 0.005
BODY = b"x" * 200


@dataclass(frozen=True)
class Shape:
    replicas: int
    followers: int

    @property
    def name(self) -> str:
        many = f"{self.followers} follower{'s' * (self.followers > 1)}"
        return f"{self.replicas} replica{'s' * (self.replicas > 1)}, {many}"


SHAPES = (Shape(1, 1), Shape(1, 4), Shape(3, 1))


@dataclass(frozen=True)
class Written:
    sent: float
    answered: float
    end: int
    """The offset that a follower must have reached to know the event."""


async def follow(placement: str, name: str) -> list[tuple[int, float]]:
    """Until standard input names an end; offsets, and when everything below them was applied."""
    client = Log(placement, []).client()
    follower = await StateFollower.open(
        client, name=name, apply=lambda version, kind, body: None,
        restore=lambda version, chunks: None, runtime=system_runtime(),
        on_failed=lambda error: sys.exit(str(error)),
    )  # fmt: skip
    reached: list[tuple[int, float]] = []

    async def note() -> None:
        while True:
            await follower.wait_applied(follower.applied_offset + 1, 60.0)
            # The same clock in every process of a machine.
            reached.append((follower.applied_offset, time.perf_counter()))

    noting = asyncio.ensure_future(note())
    print("ready", flush=True)
    end = await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await follower.wait_applied(int(end), 30.0)
    await asyncio.sleep(0.1)
    noting.cancel()
    await follower.close()
    await client.close()
    return reached


class FollowerProcess:
    def __init__(self, log: Log, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.state_follow", log.placement, name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the follower did not start"

    def finish(self, written: list[Written]) -> list[float]:
        """When it knew each of the events."""
        output, _ = self._process.communicate(f"{written[-1].end}\n")
        reached: list[tuple[int, float]] = json.loads(output)
        offsets = [offset for offset, _ in reached]
        return [reached[bisect_left(offsets, event.end)][1] for event in written]


async def write(log: StateLog) -> list[Written]:
    found: list[Written] = []
    for event in range(EVENTS):
        await asyncio.sleep(PACE_SECONDS)
        sent = time.perf_counter()
        await log.append("event", (event, BODY))
        found.append(Written(sent, time.perf_counter(), log.applied_offset))
    return found


async def measure(nodes: Log, shape: Shape) -> dict[str, Any]:
    client = nodes.client()
    name = f"s/bench-{shape.replicas}-{shape.followers}"
    log = await StateLog.open(
        client, name=name, epoch=1, clean=False, apply=lambda version, kind, body: None,
        snapshot=lambda: (1, []), restore=lambda version, chunks: None, runtime=system_runtime(),
        replica_nums=shape.replicas,
    )  # fmt: skip
    followers = [FollowerProcess(nodes, name) for _ in range(shape.followers)]
    written = await write(log)
    known = [each.finish(written) for each in followers]
    await log.close()
    await client.close()
    return row(shape.name, written[WARM:], [max(each) for each in zip(*known, strict=True)][WARM:])


def row(name: str, written: list[Written], known: list[float]) -> dict[str, Any]:
    both = list(zip(written, known, strict=True))
    behind = sorted(max(0.0, at - event.answered) for event, at in both)
    value = 1e3 * median(at - event.sent for event, at in both)
    limit = 1e3 * median(event.answered - event.sent for event, _ in both)
    return {
        "name": name,
        "value": value,
        "unit": "ms",
        "limit": limit,
        "ratio": value / limit,
        **{
            f"{label}_ms": 1e3 * behind[int(share * (len(behind) - 1))]
            for label, share in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999))
        },
    }


def run() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for replicas in sorted({shape.replicas for shape in SHAPES}):
        with ExitStack() as stack:
            nodes = start_log(stack, replicas)
            rows += [
                run_loop(measure(nodes, shape)) for shape in SHAPES if shape.replicas == replicas
            ]
    return rows


if __name__ == "__main__":
    print(json.dumps(run_loop(follow(*sys.argv[1:]))), flush=True)
