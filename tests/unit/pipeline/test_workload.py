"""Which of a container's queries run and what is said of their operators, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.container import ContainerSettings
from headrace.pipeline.queries import Query
from headrace.pipeline.query_run import QueryRun
from headrace.pipeline.windowlog import WindowLog
from headrace.pipeline.windows import WindowGrid
from headrace.pipeline.workload import Workload
from headrace.runtime.simulated_disk import SimulatedDisk
from headrace.runtime.simulated_random import SimulatedRandom
from headrace.runtime.system import system_runtime
from headrace.spark.queries import QueryStatus
from headrace.wire.umbilical import messages as m

START = 1_700_000_000_000
ACTIVE, SHUTDOWN, FAILED = m.DeployState.ACTIVE, m.DeployState.SHUTDOWN, m.DeployState.FAILED


class Running:
    """A query as far as the container looks at it."""

    def __init__(self) -> None:
        self.now = QueryStatus(active=True)

    def status(self) -> QueryStatus:
        return self.now

    def take_progress(self) -> list[dict[str, Any]]:
        return []

    def stop(self) -> None:
        self.now = QueryStatus(active=False)


class Lock:
    held = True

    def release(self) -> None:
        self.held = False


class Stage:
    """Two queries on one topic: `valid` and `audit`."""

    def __init__(self) -> None:
        settings = ContainerSettings("c", "/a", "/p", "shop.py", "127.0.0.1:8090")
        context = m.StreamingContainerContext(start_window_millis=START)
        self.workload = Workload(system_runtime(), settings, context)
        names = ("numbers", "valid", "audit")
        self.workload._operators = {
            id_: m.OperatorDeployInfo(
                id=id_, type=m.OperatorType.GENERIC, name=name, run_id=10 + id_
            )
            for id_, name in enumerate(names, start=1)
        }
        self.queries = {name: Running() for name in ("valid", "audit")}
        self.locks = {name: Lock() for name in self.queries}
        disk = SimulatedDisk(SimulatedRandom(1))
        for name, running in self.queries.items():
            frame: Any = None
            query = Query(name=name, frame=frame, mode="append", operators=("numbers", name))
            windows = WindowLog(disk, f"/a/{name}", WindowGrid(START, 500))
            run = QueryRun(query, windows, self.locks[name], disk, lambda: 0.0)
            run.running = running  # type: ignore[assignment]  # it looks like one
            self.workload._runs[name] = run

    def told(self) -> dict[int, m.DeployState]:
        return {one.node_id: one.state for one in self.workload.heartbeats(1, 1)}


def test_a_query_that_failed_takes_no_neighbour_with_it() -> None:
    stage = Stage()
    stage.queries["audit"].now = QueryStatus(active=False, error="the disk is full")
    assert stage.told() == {1: FAILED, 2: ACTIVE, 3: FAILED}
    ((operators, reason),) = stage.workload.take_failures()
    assert (operators, reason) == ((1, 3), "the disk is full")
    stage.workload.undeploy([1, 3])  # what the controller answers
    assert stage.queries["valid"].now.active, "it reads the same topic, and nobody restarts it"
    assert {name: lock.held for name, lock in stage.locks.items()} == {
        "valid": True,
        "audit": False,
    }
    assert stage.told() == {2: ACTIVE}
    stage.workload.undeploy([2])
    assert not stage.queries["valid"].now.active


def test_a_topic_has_ended_when_all_that_read_it_have() -> None:
    stage = Stage()
    stage.queries["audit"].now = QueryStatus(active=False)
    assert stage.told() == {1: ACTIVE, 2: ACTIVE, 3: SHUTDOWN}
    stage.queries["valid"].now = QueryStatus(active=False)
    assert stage.told() == {1: SHUTDOWN, 2: SHUTDOWN, 3: SHUTDOWN}


@pytest.mark.parametrize("id_", [1, 2, 3])
def test_a_report_names_its_deployment(id_: int) -> None:
    told = {one.node_id: one.run_id for one in Stage().workload.heartbeats(1, 1)}
    assert told[id_] == 10 + id_
