"""Which of a container's queries run and what is said of their operators, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.pipeline.container.container import ContainerSettings
from headrace.pipeline.container.query_run import QueryRun
from headrace.pipeline.container.script_workload import ScriptWorkload
from headrace.pipeline.container.window_log import WindowLog
from headrace.pipeline.container.workload import Workload
from headrace.pipeline.declare.queries import Query
from headrace.pipeline.plan.scripts import RUN_SCRIPT
from headrace.runtime.system import system_runtime
from headrace.spark.session.queries import QueryStatus
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid
from tests.simulator.disk import SimulatedDisk
from tests.simulator.random import SimulatedRandom

START = 1_700_000_000_000
ACTIVE, SHUTDOWN, FAILED = m.DeployState.ACTIVE, m.DeployState.SHUTDOWN, m.DeployState.FAILED


class Running:
    """A query as far as the container looks at it."""

    run_id = ""

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
        self.queries: dict[str, Running] = {}
        self.locks: dict[str, Lock] = {}
        self.disk = SimulatedDisk(SimulatedRandom(1))
        for name in ("valid", "audit"):
            self.add(name)

    def add(self, name: str) -> None:
        """A query that runs."""
        self.queries[name], self.locks[name] = Running(), Lock()
        frame: Any = None
        query = Query(name=name, frame=frame, mode="append", operators=("numbers", name))
        windows = WindowLog(self.disk, f"/a/{name}", WindowGrid(START, 500))
        run = QueryRun(query, windows, self.locks[name], self.disk, lambda: 0.0)
        run.running = self.queries[name]  # type: ignore[assignment]  # it looks like one
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


class Pass:
    """What `deploy` does around the queries that it starts, step by step."""

    def __init__(self, stage: Stage, *names: str) -> None:
        self.stage, workload = stage, stage.workload
        ids = {"numbers": 1, "valid": 2, "audit": 3}
        self.infos = [
            m.OperatorDeployInfo(
                id=ids[name], type=m.OperatorType.GENERIC, name=name, run_id=20 + ids[name]
            )
            for name in names
        ]
        workload.expect(self.infos)

    def end(self) -> None:
        """Its queries run."""
        owned = {}
        for info in self.infos:
            names = {info.name} if info.name != "numbers" else set[str]()
            owned[info.id] = names
            for name in names:
                self.stage.add(name)
        self.stage.workload._settle(self.infos, owned)


def test_what_failed_and_went_during_a_deployment_does_not_come_back_with_it() -> None:
    """Two outputs that fail a second apart: the second one, while the first is started again."""
    stage = Stage()
    stage.queries["valid"].now = QueryStatus(active=False, error="no such table")
    assert stage.told() == {1: FAILED, 2: FAILED, 3: ACTIVE}
    stage.workload.undeploy([1, 2])
    deployment = Pass(stage, "numbers", "valid")
    assert all(stage.workload.knows(each) for each in (1, 2, 3))
    stage.queries["audit"].now = QueryStatus(active=False, error="no such table")
    assert stage.told() == {3: FAILED}
    stage.workload.undeploy([3])
    assert not stage.workload.knows(3)
    deployment.end()
    assert stage.told() == {1: ACTIVE, 2: ACTIVE}
    assert not stage.workload.knows(3), "the next deployment of it must not be ignored"
    Pass(stage, "audit").end()
    assert stage.told() == {1: ACTIVE, 2: ACTIVE, 3: ACTIVE}


def test_what_is_called_off_while_it_is_deployed_does_not_stay() -> None:
    stage = Stage()
    stage.workload.undeploy([1, 2])
    deployment = Pass(stage, "numbers", "valid")
    stage.workload.undeploy([2])
    deployment.end()
    assert stage.told() == {1: ACTIVE, 3: ACTIVE}
    assert not stage.queries["valid"].now.active


def test_an_operator_without_its_query_is_neither_reported_nor_known() -> None:
    stage = Stage()
    stage.workload._owned = {2: frozenset({"valid"}), 3: frozenset({"audit"})}
    del stage.workload._runs["audit"]
    assert stage.told() == {1: ACTIVE, 2: ACTIVE}
    assert [stage.workload.knows(each) for each in (1, 2, 3)] == [True, True, False]
    del stage.workload._runs["valid"]
    assert stage.told() == {}
    assert stage.workload.knows(1), "no query ends in it: there is nothing to deploy"


def test_a_query_that_spark_does_not_have_yet_is_not_reported() -> None:
    stage = Stage()
    stage.workload._runs["valid"].running = None
    assert stage.told() == {1: ACTIVE, 3: ACTIVE}


@pytest.mark.parametrize("id_", [1, 2, 3])
def test_a_report_names_its_deployment(id_: int) -> None:
    told = {one.node_id: one.run_id for one in Stage().workload.heartbeats(1, 1)}
    assert told[id_] == 10 + id_


class Script:
    """A script as far as its container looks at it; its text goes on."""

    over, error, session = False, "", None

    def __init__(self) -> None:
        self.runs = {name: Running() for name in ("copies", "sums")}
        for name, running in self.runs.items():
            running.run_id = name

    def queries(self) -> list[tuple[str, Running]]:
        return list(self.runs.items())

    def stop(self) -> None: ...

    def wait(self, seconds: float) -> None: ...


def test_a_query_that_failed_beside_others_of_its_script_asks_for_a_new_container() -> None:
    """Only the whole script starts it again; deployed alone it would stay as it is for ever."""
    settings = ContainerSettings("c", "/a", "/p", "job.py", "127.0.0.1:8090")
    context = m.StreamingContainerContext(start_window_millis=START)
    workload = ScriptWorkload(system_runtime(), settings, context)
    infos = [
        m.OperatorDeployInfo(id=id_, type=m.OperatorType.GENERIC, name=name, function=RUN_SCRIPT)
        for id_, name in enumerate(("copies", "sums"), start=1)
    ]

    def told() -> dict[int, m.DeployState]:
        return {one.node_id: one.state for one in workload.heartbeats(1, 1)}

    workload.expect(infos)
    assert told() == {}, "nothing runs before the script is started"
    script = Script()
    workload._script = script  # type: ignore[assignment]  # it looks like one
    assert told() == {1: ACTIVE, 2: ACTIVE}
    script.runs["sums"].now = QueryStatus(active=False)
    assert told() == {1: ACTIVE, 2: SHUTDOWN}
    workload.undeploy([2])
    assert not workload.is_broken(), "it has ended, and well"
    workload.expect([infos[1]])
    script.runs["sums"].now = QueryStatus(active=False, error="the disk is full")
    assert told() == {1: ACTIVE, 2: FAILED}
    workload.undeploy([2])
    assert workload.is_broken()
    workload.undeploy([1])
    assert not workload.is_broken(), "all of it is gone, and can be started anew"
