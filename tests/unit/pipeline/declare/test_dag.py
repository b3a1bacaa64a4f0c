"""Three front ends, one plan: decorators, the explicit builder, JSON in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Application, Dag
from headrace.errors import ConfigError
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan
from tests.unit.pipeline import shop_functions as functions


def decorated() -> Application:
    app = Application("shop", trigger="2 seconds", HEARTBEAT_TIMEOUT_MILLIS=5000)
    app.topic("orders", "shop/orders", schema="sku string, qty int", columns=("offset",))
    app.topic("prices", "shop/prices", starting="latest", messages_max=5)
    app.operator(
        outputs=("ok", "late"),
        expect={"qty > 0": "dead_letter"},
        live=("minimum",),
        MEMORY_MB=2048,
        ports={"late": {"BUFFER_MEMORY_MB": 64}},
    )(functions.split)
    app.operator(
        inputs={"rows": "split.ok"},
        to="shop/totals",
        key="sku",
        output_mode="update",
        instances=3,
        renamed_from="sums",
    )(functions.totals)
    app.sink(inputs={"rows": "split.late"}, isolate=True)(functions.store)
    app.stream("split.late", name="late_ones", locality="NODE_LOCAL")
    app.metric("split", port="ok", units="sum(qty)")
    app.metric("split", port="ok", most="max(qty)", aggregate="max")
    app.committed("store")(functions.on_commit)
    return app


def explicit() -> Application:
    dag = Dag("shop", trigger="2 seconds")
    dag.set_attribute("HEARTBEAT_TIMEOUT_MILLIS", 5000)
    dag.add_topic("orders", "shop/orders", schema="sku string, qty int", columns=("offset",))
    dag.add_topic("prices", "shop/prices", starting="latest", messages_max=5)
    dag.add_operator(
        "split",
        functions.split,
        outputs=("ok", "late"),
        expect={"qty > 0": "dead_letter"},
        live=("minimum",),
        MEMORY_MB=2048,
        ports={"late": {"BUFFER_MEMORY_MB": 64}},
    )
    dag.add_operator(
        "totals",
        functions.totals,
        to="shop/totals",
        key="sku",
        output_mode="update",
        instances=3,
        renamed_from="sums",
    )
    dag.add_sink("store", functions.store, isolate=True)
    dag.add_stream("orders", "orders", "split")
    dag.add_stream("split_ok", "split.ok", "totals.rows")
    dag.add_stream("prices", "prices", "totals.prices")
    dag.add_stream("late_ones", "split.late", "store", locality="NODE_LOCAL")
    dag.add_metric("split", port="ok", units="sum(qty)")
    dag.add_metric("split", port="ok", most="max(qty)", aggregate="max")
    app = dag.application()
    app.committed("store")(functions.on_commit)
    return app


def test_all_front_ends_make_the_same_plan() -> None:
    plan = decorated().plan()
    assert explicit().plan() == plan
    text = json.dumps(plan)
    again = Application.from_plan(json.loads(text))
    assert again.plan() == plan
    assert again.stages == decorated().stages
    assert again.topics == decorated().topics
    assert again.hooks == decorated().hooks


def test_the_controllers_plan_keeps_everything() -> None:
    plan = decorated().plan()
    logical = LogicalPlan.from_json(plan)
    kept = logical.to_json()
    assert Application.from_plan(kept).plan() == plan
    physical = make_physical_plan(logical)
    names = [(one.logical.name, one.instance) for one in physical.operators]
    assert names.count(("totals", 2)) == 1
    store = next(one for one in physical.operators if one.logical.name == "store")
    others = {one.container for one in physical.operators if one.logical.name == "split"}
    assert store.container not in others


@given(
    trigger=st.sampled_from(["1 second", "500 milliseconds"]),
    expect=st.dictionaries(st.text(min_size=1), st.sampled_from(["drop", "fail", "dead_letter"])),
    live=st.sampled_from([(), ("minimum",), ("minimum", "name")]),
    instances=st.integers(1, 9),
    minimum=st.integers(),
    name=st.text(),
    mode=st.sampled_from([None, "append", "update", "complete"]),
)
def test_any_plan_survives_json(
    trigger: str,
    expect: dict[str, str],
    live: tuple[str, ...],
    instances: int,
    minimum: int,
    name: str,
    mode: str | None,
) -> None:
    dag = Dag("a", trigger=trigger)
    dag.add_topic("orders", "s/orders")
    dag.add_operator(
        "valid",
        functions.split,
        properties={"minimum": minimum, "name": name},
        to="s/out",
        expect=expect,
        live=live,
        instances=instances,
        output_mode=mode,
    )
    dag.add_stream("raw", "orders", "valid.orders")
    app = dag.application()
    plan = json.loads(json.dumps(app.plan()))
    again = Application.from_plan(plan)
    assert again.plan() == app.plan()
    assert again.stages == app.stages
    kept = LogicalPlan.from_json(plan).to_json()
    assert Application.from_plan(kept).stages == app.stages


def refused(text: str) -> Any:
    return pytest.raises(ConfigError, match=text)


def test_what_is_wired_wrongly_is_refused() -> None:
    dag = Dag("a")
    dag.add_topic("orders", "s/orders")
    dag.add_operator("totals", functions.totals, to="s/t")
    with refused("is added twice"):
        dag.add_sink("orders", functions.store)
    with refused("goes nowhere"):
        dag.add_stream("raw", "orders")
    with refused("use add_stream"):
        dag.add_operator("other", functions.split, inputs={"orders": "orders"})
    dag.add_stream("raw", "orders", "totals.rows")
    with refused("is added twice"):
        dag.add_stream("raw", "orders", "totals.prices")
    with refused(r'port prices of totals has no stream: dag.add_stream\(.*"totals.prices"'):
        dag.application()
    dag.add_stream("more", "nothing", "totals.prices")
    with refused("fed by 'nothing', which does not exist"):
        dag.application()
    dag.add_stream("again", "orders", "totals.rows")
    with refused("totals.rows has two streams"):
        dag.application()
    other = Dag("a")
    other.add_operator("totals", functions.totals)
    other.add_stream("raw", "orders", "totals")
    with refused("no input port totals; there is totals.rows, totals.prices"):
        other.application()


def test_a_plan_that_is_none_is_refused() -> None:
    plan = decorated().plan()

    def changed(**values: Any) -> dict[str, Any]:
        operators = [
            {**one, **values} if one["name"] == "store" else one for one in plan["operators"]
        ]
        return {**plan, "operators": operators}

    with refused("not a plan"):
        Application.from_plan({"name": "a"})
    with refused("not a plan"):
        Application.from_plan({**plan, "operators": ["store"]})
    with refused("no function tests.unit.pipeline.shop_functions:missing"):
        Application.from_plan(changed(**{"class": "tests.unit.pipeline.shop_functions:missing"}))
    with refused("NOT_A_FUNCTION is no function"):
        reference = "tests.unit.pipeline.shop_functions:NOT_A_FUNCTION"
        Application.from_plan(changed(**{"class": reference}))
    with refused("store has no property colour"):
        Application.from_plan(changed(properties={"colour": "red"}))
    with refused("port rows of store has no stream"):
        Application.from_plan({**plan, "streams": plan["streams"][:-1]})
    with refused("store has no attribute MEMORY; did you mean MEMORY_MB"):
        Application.from_plan(changed(attributes={"MEMORY": 5}))
