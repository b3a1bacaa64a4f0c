"""The same loads on 1, 2, 4, ... workers of `headrace up`, against as many bare servers.

The server runs as people run it (`headrace up --dev --workers N`); each client is a process with
one connection (`scale_clients.py`) and, of one topic, a partition of its own; a consumer in the
mixed load follows a producer's. Rounds at the broker and at N processes of `bare_server.py` take
turns and the best of each counts. With more than four workers each load is taken again with two
connections for each worker.

Clients are at `any` worker, where the system put their connections, so that most requests are
forwarded; or at the `leader` of their partition, found by connecting again until a worker's number
shows in the client id. Who leads a partition is told by the workers' metrics: it is where one more
partition is open after a SEND to it.

`spread` says how many workers lead a partition of the load, and how many the busiest of them leads.
`x one` is the rate to that of one worker with the load's usual connections, `x bare` that to the
bare servers'. Consumers of the mixed load poll again at once; its rate is the producers', its bare
counterpart answers every poll with a full batch. `cores` is the processor time of all workers, and
`client` that of the busiest client, in a second: near 1.00 the clients are the limit.

Run alone: `python -m benchmarks.broker_scale [--workers 1,2,4] [--seconds 1.0] [--json PATH]`.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.scale_clients import NO_WORKER, Clients, Done, Work
from benchmarks.scale_servers import (
    GET_ME,
    LOGIN,
    BareServer,
    Broker,
    Place,
    poll_frame,
    running_bare,
    running_broker,
    send_frame,
)

SECONDS, ROUNDS = 1.0, 2
SHORT_SECONDS = 0.5  # among all benchmarks
BATCHES = 4  # that each consumer polls by turns
ANY, LEADER = "any", "leader"


@dataclass(frozen=True)
class Load:
    kind: str
    count: int
    size: int
    connections: int

    @property
    def name(self) -> str:
        what = f"{self.count} x {self.size} B"
        if self.kind == "both":
            each = self.connections // 2
            return f"{each} producers, {each} consumers {what}"
        who = "producers" if self.kind == "send" else "consumers"
        return f"{self.connections} {who} {what}"

    @property
    def partitions(self) -> int:
        return self.connections // 2 if self.kind == "both" else self.connections

    def for_workers(self, workers: int) -> list[Load]:
        """With the usual connections, and with two for each worker where that is more."""
        more = max(self.connections, 2 * workers)
        return [self] if more == self.connections else [self, replace(self, connections=more)]


LOADS = (
    Load("send", 1000, 1000, 8),
    Load("poll", 1000, 1000, 8),
    Load("send", 1000, 100, 8),
    Load("send", 1, 1000, 16),
    Load("both", 100, 1000, 8),
)


# --- rounds ---------------------------------------------------------------------------------------


def works_of(load: Load, partitions: Sequence[int]) -> list[Work]:
    """Of each client; producers come first."""

    def produce(partition: int) -> Work:
        return Work([send_frame(partition, load.count, load.size)], load.count)

    def consume(partition: int) -> Work:
        offsets = range(0, BATCHES * load.count, load.count)
        return Work([poll_frame(partition, at, load.count) for at in offsets], load.count)

    def follow(partition: int) -> Work:
        return Work([poll_frame(partition, 0, load.count)], load.count, follows=True)

    if load.kind == "poll":
        return [consume(partition) for partition in partitions]
    producers = [produce(partition) for partition in partitions]
    return producers + ([follow(p) for p in partitions] if load.kind == "both" else [])


@dataclass
class Round:
    rate: float
    """Messages of producers, or of consumers where there are no producers, in a second."""
    consumed: float
    """What consumers of a mixed load got, in a second."""
    empty_polls: float
    p50_ms: float
    p99_ms: float
    cores: list[float]
    """Processor seconds of each server process in a second."""
    busiest_client: float
    at_leader: int
    """Connections at the worker that leads their partition."""


def _round(
    clients: Clients,
    load: Load,
    works: Sequence[Work],
    processes: Sequence[psutil.Process],
    seconds: float,
    at_leader: int = 0,
) -> Round:
    def cpu() -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in processes]

    before: list[float] = []
    began = 0.0

    def on_counting() -> None:
        nonlocal began, before
        began, before = time.monotonic(), cpu()

    done = clients.work(works, seconds, on_counting)
    after, lasted = cpu(), time.monotonic() - began
    counted, others = done[: load.partitions], done[load.partitions :]
    latencies = array("d")
    for one in counted:
        latencies += one.latencies
    ordered = sorted(latencies)
    return Round(
        rate=_rate(counted),
        consumed=_rate(others),
        empty_polls=sum(one.empty / one.seconds for one in others),
        p50_ms=1000 * ordered[len(ordered) // 2],
        p99_ms=1000 * ordered[int(0.99 * (len(ordered) - 1))],
        cores=[(new - old) / lasted for old, new in zip(before, after, strict=True)],
        busiest_client=max(one.cpu_seconds / one.seconds for one in done),
        at_leader=at_leader,
    )


def _rate(done: Sequence[Done]) -> float:
    return sum(one.messages / one.seconds for one in done)


class Contest:
    """One load: rounds at the broker, with clients at any worker and at leaders, and bare ones."""

    def __init__(
        self, clients: Clients, load: Load, broker: Broker, bare: Sequence[BareServer]
    ) -> None:
        self._clients, self._load, self._broker, self._bare = clients, load, broker, bare
        self._works: list[Work] = []
        self._places: list[Place] = []
        self.ours: dict[str, list[Round]] = {ANY: []}
        if broker.workers > 1:
            self.ours[LEADER] = []
        self.limits: list[Round] = []

    @property
    def spread(self) -> list[int]:
        """How many of the partitions each worker leads."""
        counts = Counter(max(place.leader, 0) for place in self._places)
        return [counts[worker] for worker in range(self._broker.workers)]

    def run(self, rounds: int, seconds: float) -> None:
        load = self._load
        self._places = self._broker.create(load.partitions)
        self._works = works_of(load, [place.partition for place in self._places])
        if load.kind == "poll":
            self._fill()
        for _ in range(rounds):
            for where, taken in self.ours.items():
                if load.kind != "poll":
                    self._broker.empty()
                taken.append(self._broker_round(where, seconds))
            self.limits.append(self._bare_round(seconds))
        self._broker.delete()

    def _fill(self) -> None:
        load = self._load
        self._broker.empty()
        for place in self._places:
            frame = send_frame(place.partition, load.count, load.size)
            for _ in range(BATCHES):
                self._broker.caller.ask(frame)

    def _broker_round(self, where: str, seconds: float) -> Round:
        load = self._load
        leaders = [
            self._places[number % load.partitions].leader for number in range(load.connections)
        ]
        wanted = leaders if where == LEADER else [NO_WORKER] * len(leaders)
        told = [(self._broker.port, LOGIN, GET_ME, worker) for worker in wanted]
        workers = self._clients.each("log_in", told)
        if self._broker.workers == 1:
            workers = leaders
        at_leader = sum(mine == leader for mine, leader in zip(workers, leaders, strict=True))
        return self._taken(self._broker.processes, seconds, at_leader)

    def _bare_round(self, seconds: float) -> Round:
        load = self._load
        for server in self._bare:
            server.fill(load.count, load.size, BATCHES * 8)
        ports = []
        for number in range(load.connections):
            sends = load.kind != "poll" and number < load.partitions
            server = self._bare[number % load.partitions % len(self._bare)]
            ports.append((server.ports["synced" if sends else "polled"],))
        self._clients.each("connect", ports)
        return self._taken([server.process for server in self._bare], seconds)

    def _taken(
        self, processes: Sequence[psutil.Process], seconds: float, at_leader: int = 0
    ) -> Round:
        taken = _round(self._clients, self._load, self._works, processes, seconds, at_leader)
        self._clients.each("disconnect", [()] * self._load.connections)
        time.sleep(0.05)  # bare servers truncate their files
        return taken


# --- results --------------------------------------------------------------------------------------


def measure(
    workers: Sequence[int],
    seconds: float,
    rounds: int,
    only: str = "",
    *,
    even: bool = False,
    on_row: Callable[[dict[str, Any]], None] = lambda _: None,
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    one_worker: dict[tuple[str, int, int], float] = {}
    with Clients() as clients:
        for count in workers:
            with running_broker(count, even=even) as broker, running_bare(count) as bare:
                for load in (each for usual in LOADS for each in usual.for_workers(count)):
                    if only not in load.name:
                        continue
                    contest = Contest(clients, load, broker, bare)
                    contest.run(rounds, seconds)
                    for row in _rows(contest, load, count, one_worker):
                        rows.append(row)
                        on_row(row)
    return rows


def _rows(
    contest: Contest, load: Load, workers: int, one_worker: dict[tuple[str, int, int], float]
) -> Iterator[dict[str, Any]]:
    limit = max(contest.limits, key=lambda one: one.rate)
    for where, taken in contest.ours.items():
        best = max(taken, key=lambda one: one.rate)
        key = (load.kind, load.count, load.size)
        if workers == 1:
            one_worker[key] = best.rate
        one = one_worker.get(key)
        yield {
            "name": f"workers {workers}: {load.name}, clients at {where}",
            "value": best.rate,
            "unit": "messages/s",
            "limit": limit.rate,
            "ratio": best.rate / limit.rate,
            "p50_ms": best.p50_ms,
            "p99_ms": best.p99_ms,
            "workers": workers,
            "load": load.name,
            "clients": where,
            "mb_per_s": best.rate * load.size / 1e6,
            "to_one_worker": best.rate / one if one else None,
            "consumed": best.consumed,
            "empty_polls": best.empty_polls,
            "connections": load.connections,
            "at_leader": best.at_leader,
            "partitions_of_workers": contest.spread,
            "cores_of_workers": best.cores,
            "busiest_client": best.busiest_client,
            "rates": [one.rate for one in taken],
            "limit_rates": [one.rate for one in contest.limits],
            "limit_p50_ms": limit.p50_ms,
            "limit_p99_ms": limit.p99_ms,
            "limit_cores": limit.cores,
            "limit_busiest_client": limit.busiest_client,
        }


def default_workers() -> list[int]:
    cores = os.cpu_count() or 1
    return [count for count in (1, 2, 4, 8, 16, 32) if count <= max(cores, 2)]


def run() -> list[dict[str, Any]]:
    """Among all benchmarks: short, and with few workers."""
    return measure(default_workers()[:3], SHORT_SECONDS, ROUNDS, os.environ.get("ONLY", ""))


HEAD = (
    f"{'workers':>7}  {'load':<41} {'clients':<7} {'at leader':<10} {'spread':<10}"
    f" {'messages/s':>13} {'MB/s':>8} {'x one':>6} {'x bare':>6} {'p50 ms':>9} {'p99 ms':>8}"
    f" {'cores':>6} {'client':>6}"
)


def _spread(row: dict[str, Any]) -> str:
    """Workers that lead a partition of the load, and the most that one of them leads."""
    led = row["partitions_of_workers"]
    return f"{sum(map(bool, led))} x <={max(led)}"


def _line(row: dict[str, Any]) -> str:
    one = f"{row['to_one_worker']:6.2f}" if row["to_one_worker"] else "     -"
    told = (
        f"{row['workers']:>7}  {row['load']:<41} {row['clients']:<7}"
        f" {row['at_leader']:>3} of {row['connections']:<3} {_spread(row):<10}"
        f" {row['value']:>13,.0f} {row['mb_per_s']:>8,.1f} {one} {row['ratio']:6.2f}"
        f" {row['p50_ms']:>9.2f} {row['p99_ms']:>8.2f}"
        f" {sum(row['cores_of_workers']):>6.2f} {row['busiest_client']:>6.2f}"
    )
    if row["consumed"] or row["empty_polls"]:
        told += f"   consumed {row['consumed']:,.0f}/s, {row['empty_polls']:,.0f} empty polls/s"
    return told


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_scale")
    parser.add_argument("--workers", default=",".join(map(str, default_workers())))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a round")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the best counts")
    parser.add_argument("--only", default="", help="loads whose name contains this")
    parser.add_argument(
        "--even", action="store_true", help="use partitions of all workers alike, of one topic"
    )
    parser.add_argument("--json", type=Path, help="write the rows here, after each")
    options = parser.parse_args(arguments)
    workers = [int(each) for each in options.workers.split(",")]
    rows: list[dict[str, Any]] = []

    def on_row(row: dict[str, Any]) -> None:
        print(_line(row), flush=True)
        rows.append(row)
        if options.json is not None:
            told = {"cores": os.cpu_count(), "even": options.even, "seconds": options.seconds}
            options.json.write_text(json.dumps({**told, "results": rows}, indent=2))

    print(HEAD, flush=True)
    measure(
        workers,
        options.seconds,
        options.rounds,
        options.only,
        even=options.even,
        on_row=on_row,
    )


if __name__ == "__main__":
    main()
