from __future__ import annotations

import asyncio

import pytest

from headrace.datanode.metrics import Counters, IoFigures, Load, Reporter, metered
from headrace.wire.sbp.messages import DataNode
from tests.simulator.runtime import Simulation


def test_in_flight_and_pending_follow_the_threads() -> None:
    figures = IoFigures()
    one, two = object(), object()
    for _ in range(5):
        figures.on_start(one, 2)
    figures.on_start(two, 4)
    assert (figures.in_flight, figures.pending) == (3, 3)
    for _ in range(4):
        figures.on_end(one, now=1.0, seconds=0.1)
    assert (figures.in_flight, figures.pending, figures.tasks) == (2, 0, 4)


def test_the_latency_is_that_of_the_last_minute() -> None:
    figures = IoFigures()
    executor = object()

    def done(now: float, seconds: float) -> None:
        figures.on_start(executor, 1)
        figures.on_end(executor, now=now, seconds=seconds)

    assert figures.average_seconds(0.0) == 0.0
    done(10.0, 1.0)
    done(10.5, 3.0)
    assert figures.average_seconds(11.0) == 2.0
    done(40.0, 5.0)
    assert figures.average_seconds(41.0) == 3.0
    assert figures.average_seconds(80.0) == 5.0, "the first second is over a minute old"
    assert figures.average_seconds(200.0) == 0.0
    assert figures.tasks == 3


def test_executors_of_a_metered_runtime_are_counted() -> None:
    simulation = Simulation(1)
    figures = IoFigures()

    def fail() -> None:
        raise ValueError("no")

    async def main() -> None:
        runtime = metered(simulation.runtime("host"), figures)
        executor = runtime.executor("x", 1)
        assert await executor.run(lambda: 7) == 7
        with pytest.raises(ValueError, match="no"):
            await executor.run(fail)
        many = [asyncio.ensure_future(executor.run(lambda: None)) for _ in range(5)]
        await asyncio.sleep(0)
        assert figures.in_flight == 1
        assert figures.pending == 4
        await asyncio.gather(*many)
        executor.close()

    simulation.run(main())
    assert (figures.tasks, figures.in_flight, figures.pending) == (7, 0, 0)


def test_a_report_tells_of_the_time_since_the_last_one() -> None:
    reporter, counters, figures = Reporter(), Counters(), IoFigures()
    executor = object()

    def load(now: float) -> Load:
        return Load(
            node=DataNode(node_id=3),
            now=now,
            counters=counters,
            storage={"written_bytes": int(now) * 1000},
            io=figures,
            free_bytes=77,
            total_bytes=100_000,
            quarantined_ranges=0,
            active_ranges=2,
            short_ranges=40_000,
        )

    reporter.report(load(10.0))
    counters.appends = 100
    counters.append_times.observe_many(0.005, 100)
    for _ in range(20):
        figures.on_start(executor, 1)
    for _ in range(10):
        figures.on_end(executor, now=12.0, seconds=0.025)
    report = reporter.report(load(15.0))
    assert report.network_append_rate == 20
    assert report.network_append_avg_latency == 5
    assert report.uring_task_rate == 2
    assert (report.uring_inflight_task_cnt, report.uring_pending_task_cnt) == (1, 9)
    assert report.uring_task_avg_latency == 25
    assert report.disk_in_rate == 1000
    assert report.disk_free_space == 77
    assert report.disk_total_space == 100_000
    assert report.range_active_cnt == 2
    assert report.range_missing_replica_cnt == 32_767, "16 bits are all there is"
    quiet = reporter.report(load(16.0))
    assert quiet.network_append_rate == quiet.uring_task_rate == 0
