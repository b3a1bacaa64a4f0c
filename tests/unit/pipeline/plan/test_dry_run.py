"""The physical plan as a dry run shows it."""

from __future__ import annotations

from headrace.config.controller import ControllerSettings
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.pipeline.plan.resources import physical_view
from tests.unit.pipeline.declare.test_dag import decorated


def test_containers_operators_streams_and_memory_are_shown() -> None:
    plan = make_physical_plan(LogicalPlan.from_json(decorated().plan()))
    view = physical_view(plan, ControllerSettings(container_heap_mb=700))
    assert view["name"] == "shop"
    assert view["window_ms"] == 500
    found = [
        (operator["name"], operator["instance"], one["index"])
        for one in view["containers"]
        for operator in one["operators"]
    ]
    assert len({place for name, _, place in found if name == "totals"}) == 3
    heaps = {
        operator["name"]: one["heap_mb"]
        for one in view["containers"]
        for operator in one["operators"]
    }
    assert (heaps["split"], heaps["store"]) == (2048, 700)
    assert view["memory_mb"] == sum(one["memory_mb"] for one in view["containers"])
    streams = {one["name"]: one for one in view["streams"]}
    assert streams["late_ones"]["locality"] == "NODE_LOCAL"
    assert not streams["late_ones"]["fused"]
    assert streams["orders"]["fused"]
    totals = next(o for c in view["containers"] for o in c["operators"] if o["name"] == "totals")
    assert totals["writes"] == "shop/totals"
    assert totals["partition_keys"][0] == [0, 3]
