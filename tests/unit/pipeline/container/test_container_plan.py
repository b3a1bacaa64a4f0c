"""Which part of an application a container runs, as its deploy requests say."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Application
from headrace.errors import ConfigError
from headrace.pipeline.container.container_plan import (
    ContainerPlan,
    EdgeInput,
    EdgeOutput,
    edge_options,
    make_container_plan,
)
from headrace.pipeline.plan import deploy as d
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import PhysicalPlan, make_physical_plan
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid

GRID = WindowGrid(1_700_000_000_000, 500)


def make_app() -> Application:
    app = Application("shop")
    app.topic("orders", "shop/orders", schema="sku string, qty int")

    @app.operator(outputs=("ok", "bad"), isolate=True)
    def split(orders: Any) -> Any: ...

    @app.operator(inputs={"rows": "split.ok"}, isolate=True, instances=2, PARTITION_KEY="sku")
    def rich(rows: Any) -> Any: ...

    @app.operator(inputs={"bad": "split.bad"}, isolate=True, to="shop/out")
    def both(rich: Any, bad: Any) -> Any: ...

    return app


def part_of(app: Application, plan: PhysicalPlan, index: int, **more: Any) -> ContainerPlan:
    deployed = d.Deployed(run_id=7, recovery=-1, broker=("127.0.0.1", 8090), **more)
    infos = [d.deploy_info(plan, one, deployed) for one in plan.in_container(index)]
    return make_container_plan(app, {one.id: one for one in infos})


def test_ports_of_other_containers_become_edges() -> None:
    app = make_app()
    plan = make_physical_plan(LogicalPlan.from_json(app.plan()))
    first, one, other, last = (part_of(app, plan, index) for index in plan.containers)
    assert first.inputs == {}
    assert first.outputs == {
        "split.ok": EdgeOutput(
            "_pipeline.shop/split_ok", "pipeline/shop/split_ok/0", 0, 7, "sku", mask=1
        ),
        "split.bad": EdgeOutput(
            "_pipeline.shop/split_bad", "pipeline/shop/split_bad/0", 0, 7, None
        ),
    }
    assert one.inputs == {"split.ok": EdgeInput("_pipeline.shop/split_ok", 1, (0,))}
    assert other.inputs == {"split.ok": EdgeInput("_pipeline.shop/split_ok", 1, (1,))}
    assert [part.outputs["rich"].partition for part in (one, other)] == [0, 1]
    assert last.inputs == {
        "rich": EdgeInput("_pipeline.shop/rich"),
        "split.bad": EdgeInput("_pipeline.shop/split_bad"),
    }
    assert last.terminals == {"both"}
    assert last.above(["both"]) == last.inputs


def test_what_the_source_of_an_edge_is_told() -> None:
    share = EdgeInput("_pipeline.shop/rich", 3, (0, 3))
    options = edge_options(
        share, ["_pipeline.shop/rich", "_pipeline.shop/bad"], address="b:1", grid=GRID
    )
    assert options == {
        "windows": "true",
        "address": "b:1",
        "topic": "_pipeline.shop/rich",
        "windowMillis": "500",
        "startWindowMillis": "1700000000000",
        "alignWith": "_pipeline.shop/bad",
        "partitionMask": "3",
        "partitionKeys": "0,3",
    }
    late = EdgeInput("_pipeline.shop/rich", activation=255, step=True)
    options = edge_options(late, [], address="b:1", grid=GRID)
    assert (options["startingWindow"], options["maxWindowsPerTrigger"]) == ("ff", "1")
    whole = EdgeInput("_pipeline.shop/rich", application_windows=4)
    options = edge_options(whole, [], address="b:1", grid=GRID)
    assert options["applicationWindowCount"] == "4"
    idle = EdgeInput("_pipeline.shop/rich", empty_batch_ms=5_000)
    options = edge_options(idle, [], address="b:1", grid=GRID, skip_until=255)
    assert (options["emptyBatchMillis"], options["skipUntil"]) == ("5000", "ff")


def test_activation_and_end_reach_the_source() -> None:
    app = make_app()
    plan = make_physical_plan(LogicalPlan.from_json(app.plan()))
    part = part_of(app, plan, plan.containers[1], until=9, activation=5)
    assert part.inputs["split.ok"] == EdgeInput("_pipeline.shop/split_ok", 1, (0,), 5, step=True)


@pytest.mark.parametrize(
    ("name", "function"), [("evil", "os:system"), ("rich", "os:system")], ids=["new", "known"]
)
def test_nothing_is_run_that_the_package_does_not_declare(name: str, function: str) -> None:
    info = m.OperatorDeployInfo(
        id=1, type=m.OperatorType.GENERIC, name=name, function=function, query=name
    )
    with pytest.raises(ConfigError, match="the package declares"):
        make_container_plan(make_app(), {1: info})
