"""What waits for an application, from the log's ends and the positions that its queries stored."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec.structs import replace

from headrace.config.controller import ControllerSettings
from headrace.errors import UnavailableError
from headrace.pipeline.controller import application_views
from headrace.pipeline.controller.backlog import Backlog, Reading, topics_read
from headrace.pipeline.controller.broker_edges import NoEdges
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.views import ApplicationSummary, ApplicationView
from headrace.pipeline.plan.logical import READ_TOPIC, LogicalPlan
from headrace.pipeline.plan.packages import PackageSpec
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.web.metrics.pipelines import format_metrics
from tests.simulator.runtime import Simulation
from tests.unit.pipeline.controller.application.test_state import START, Driver, plan
from tests.unit.pipeline.controller.test_controller import MemoryLog
from tests.unit.pipeline.controller.test_ordering import Launcher

Positions = dict[int, tuple[int, int | None]]


def sample(**readers: Positions) -> dict[str, dict[str, dict[str, Reading]]]:
    """Of one topic: (end, next) by partition for each operator."""
    return {
        "orders": {
            operator: {
                f"orders/{number}": Reading(0, end, next_) for number, (end, next_) in some.items()
            }
            for operator, some in readers.items()
        }
    }


def seen(backlog: Backlog, now_ms: int) -> ApplicationView:
    view = application_views.details(Driver().application, now_ms)
    audit = replace(view.operators[1], name="audit")
    return backlog.annotate(replace(view, operators=[*view.operators, audit]), now_ms)


def test_what_the_log_has_and_no_query_committed_waits_whoever_runs() -> None:
    backlog = Backlog()
    backlog.on_sample(sample(revenue={0: (10, 10)}), {}, START)
    assert (seen(backlog, START).lag, seen(backlog, START).lag_seconds) == (0, 0.0)
    backlog.on_sample(sample(revenue={0: (12, 10)}), {}, START + 2_000)
    backlog.on_sample(sample(revenue={0: (14, 10)}), {}, START + 62_000)
    view = seen(backlog, START + 72_000)
    assert (view.lag, view.lag_seconds) == (4, 70.0)
    revenue = view.operators[1]
    assert (revenue.lag, revenue.lag_seconds, revenue.still_ms) == (4, 70.0, 70_000)
    backlog.on_sample(sample(revenue={0: (14, 13)}), {}, START + 80_000)
    view = seen(backlog, START + 80_000)
    assert (view.lag, view.lag_seconds) == (1, 18.0)
    assert view.operators[1].still_ms == 0, "it moved"


def test_the_slowest_query_counts_partition_by_partition() -> None:
    backlog = Backlog()
    positions = sample(revenue={0: (10, 4), 1: (10, 10)}, audit={0: (10, 9), 1: (10, 7)})
    backlog.on_sample(positions, {}, START)
    view = seen(backlog, START)
    assert view.lag == 6 + 3
    assert [one.lag for one in view.operators] == [9, 6, 4]


def test_without_a_position_everything_waits_unless_a_query_begins_at_the_end() -> None:
    backlog = Backlog()
    backlog.on_sample({"orders": {"revenue": {"orders/0": Reading(3, 10, None)}}}, {}, START)
    assert backlog.rows == 7
    backlog.on_sample(
        {"orders": {"revenue": {"orders/0": Reading(3, 10, None)}}}, {"orders": False}, START
    )
    assert backlog.rows == 0
    backlog.on_sample({"orders": {"revenue": {"orders/0": Reading(8, 10, 2)}}}, {}, START)
    assert backlog.rows == 2, "what retention removed does not wait"


def test_a_topic_that_was_purged_starts_anew_and_memory_is_bounded() -> None:
    backlog = Backlog()
    for number in range(5_000):
        backlog.on_sample(sample(revenue={0: (10 + number, 0)}), {}, START + number)
    assert seen(backlog, START + 5_000).lag_seconds == 5.0
    assert len(backlog._partitions["orders", "orders/0"].growths) <= 512
    backlog.on_sample(sample(revenue={0: (2, 0)}), {}, START + 6_000)
    assert seen(backlog, START + 7_000).lag_seconds == 1.0


def test_what_was_not_measured_is_as_containers_told_it() -> None:
    driver = Driver()
    driver.run_both()
    told = application_views.summary(driver.application, driver.now)
    view = Backlog().summarize(told, driver.now)
    assert (view.lag, view.lag_seconds) == (0, None)


def test_topics_and_who_reads_them_are_in_the_plan() -> None:
    declared = plan()
    declared["operators"][0]["class"] = READ_TOPIC
    found = topics_read(make_physical_plan(LogicalPlan.from_json(declared)))
    assert {port: readers for port, (_, readers) in found.items()} == {"orders": {"revenue"}}
    declared["operators"][0]["properties"]["ending"] = "latest"  # a backfill stores no positions
    assert topics_read(make_physical_plan(LogicalPlan.from_json(declared))) == {}


class Broker(NoEdges):
    """A topic of which nobody has read anything; it is away at times."""

    end = 2
    away = False

    async def readings(
        self, application: str, topic: str, operators: Collection[str]
    ) -> dict[str, dict[str, Reading]] | None:
        assert (application, topic) == ("shop", "shop/orders")
        if self.away:
            raise UnavailableError("the broker is away")
        return {operator: {"orders/0": Reading(0, self.end, 0)} for operator in operators}


class ShopLauncher(Launcher):
    async def describe(self, *_: Any, **__: Any) -> dict[str, Any]:
        declared = plan()
        declared["operators"][0]["class"] = READ_TOPIC
        return declared


def test_a_pipeline_whose_container_never_comes_up_shows_what_waits() -> None:
    simulation = Simulation(1)

    async def run() -> None:
        launcher, broker, clock = ShopLauncher(), Broker(), simulation.runtime("c").clock
        controller = Controller(
            simulation.runtime("c"),
            ControllerSettings(),
            data_dir="/data",
            open_log=MemoryLog().open,
            launcher=launcher,
            edges=broker,
            host="c",
        )
        await controller.start()
        await controller.operations.submit(PackageSpec("shop.py", {"shop.py": b""}))
        for _ in range(3):  # a crash loop
            launcher.processes[-1].end(1)
            await clock.sleep(10)
        assert len(launcher.processes) > 3
        (summary,) = controller.operations.list()
        assert isinstance(summary, ApplicationSummary)
        assert (summary.state, summary.lag) == ("RUNNING", 2)
        assert 25 < (summary.lag_seconds or 0.0) < 31
        text = format_metrics(controller.operations)
        assert 'headrace_pipeline_lag_rows{application="shop"} 2' in text
        assert "headrace_pipeline_lag_seconds" in text
        broker.away = True
        await clock.sleep(10)
        assert controller.operations.show("shop").lag == 2, "the last that was known"
        for process in launcher.processes:
            process.end(0)
        await controller.close()

    simulation.run(run())
