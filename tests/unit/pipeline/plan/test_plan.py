"""Which plans are refused, and where the operators of the others run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from headrace.errors import InvalidArgumentError
from headrace.pipeline.plan.logical import (
    PARTITION_KEY,
    READ_TOPIC,
    Endpoint,
    LogicalPlan,
    Operator,
    Port,
    Stream,
)
from headrace.pipeline.plan.physical import PhysicalPlan, make_physical_plan, partition_keys
from headrace.wire.umbilical.messages import Json, Locality, OperatorType


def operator(name: str, *inputs: str, **more: object) -> Operator:
    base = Operator(
        name,
        function=f"shop:{name}",
        inputs=tuple(Port(one) for one in inputs),
        outputs=(Port("output"),),
    )
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]  # test shorthand


def stream(source: str, *sinks: str, **more: object) -> Stream:
    ends = tuple(Endpoint(*sink.split(".")) for sink in sinks)
    base = Stream(source, Endpoint(source, "output"), ends)
    return dataclasses.replace(base, **more)  # type: ignore[arg-type]  # test shorthand


def chain(*operators: Operator, streams: Sequence[Stream]) -> LogicalPlan:
    return LogicalPlan("shop", operators, tuple(streams))


ORDERS, VALID, REVENUE = operator("orders"), operator("valid", "orders"), operator("revenue", "in")
SHOP = chain(
    ORDERS,
    VALID,
    dataclasses.replace(REVENUE, terminal=True),
    streams=[stream("orders", "valid.orders"), stream("valid", "revenue.in")],
)


def test_one_application_is_one_container_by_default() -> None:
    plan = make_physical_plan(SHOP)
    assert plan.container_count == 1
    assert [(one.id, one.logical.name, one.query, one.type) for one in plan.operators] == [
        (1, "orders", "", OperatorType.INPUT),
        (2, "valid", "", OperatorType.OIO),
        (3, "revenue", "revenue", OperatorType.OIO),
    ]
    assert plan.downstream == {1: {2}, 2: {3}, 3: set()}


def test_unconnected_groups_share_the_container() -> None:
    plan = make_physical_plan(chain(operator("a"), operator("b"), streams=[]))
    assert plan.container_count == 1
    assert [one.query for one in plan.operators] == ["a", "b"]


@pytest.mark.parametrize(
    "split",
    [{"locality": Locality.NODE_LOCAL}, {"locality": Locality.RACK_LOCAL}, {"remote": True}],
    ids=["node", "rack", "remote"],
)
def test_a_split_stream_makes_a_second_container(split: dict[str, object]) -> None:
    streams = [stream("orders", "valid.orders", **split), stream("valid", "revenue.in")]
    plan = make_physical_plan(chain(ORDERS, VALID, REVENUE, streams=streams))
    assert [one.container for one in plan.operators] == [0, 1, 1]
    assert plan.operators[0].query == "orders"  # its rows leave the container
    assert plan.operators[1].type is OperatorType.GENERIC
    assert not plan.operators[1].inputs[0].local


def test_an_isolated_operator_is_alone() -> None:
    alone = dataclasses.replace(VALID, isolate=True)
    plan = make_physical_plan(chain(ORDERS, alone, REVENUE, streams=SHOP.streams))
    homes = {one.logical.name: one.container for one in plan.operators}
    assert homes["valid"] not in (homes["orders"], homes["revenue"])
    assert homes["orders"] == homes["revenue"]


def test_instances_divide_the_key_space_and_are_read_as_one_source() -> None:
    many = dataclasses.replace(VALID, instances=3)
    plan = make_physical_plan(chain(ORDERS, many, REVENUE, streams=SHOP.streams))
    copies = [one for one in plan.operators if one.logical.name == "valid"]
    assert len({one.container for one in copies}) == 3
    assert [one.query for one in copies] == ["valid.0", "valid.1", "valid.2"]
    assert {one.inputs[0].partition_mask for one in copies} == {3}
    assert [one.inputs[0].partition_keys for one in copies] == [(0, 3), (1,), (2,)]
    reader = plan.operators[-1]
    assert [one.source for one in reader.inputs] == [one.id for one in copies]


@pytest.mark.parametrize("instances", range(1, 20))
def test_every_key_belongs_to_one_instance(instances: int) -> None:
    mask, keys = partition_keys(instances)
    assert sorted(key for some in keys for key in some) == list(range(mask + 1))
    assert instances <= mask + 1 < 2 * instances or instances == 1


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (chain(streams=[]), "needs an operator"),
        (LogicalPlan("no/slash", (operator("a"),)), "not a name"),
        (chain(operator("a"), operator("a"), streams=[]), "twice"),
        (chain(operator("b", "x"), streams=[]), "not connected"),
        (chain(operator("a"), streams=[stream("z", "a.x")]), "source does not exist"),
        (chain(operator("a"), streams=[stream("a", "a.x")]), "sink does not exist"),
        (chain(operator("a"), streams=[stream("a")]), "needs a sink"),
        (
            chain(
                operator("a", "x"),
                operator("b", "x"),
                streams=[stream("a", "b.x"), stream("b", "a.x")],
            ),
            "cycle",
        ),
        (
            chain(
                operator("a"),
                operator("b"),
                operator("c", "x"),
                streams=[stream("a", "c.x"), stream("b", "c.x")],
            ),
            "two streams",
        ),
        (chain(operator("a", instances=0), streams=[]), "instances"),
        (
            chain(operator("a", attributes={"APPLICATION_WINDOW_COUNT": 2}), streams=[]),
            "multiple",
        ),
        (
            chain(
                operator("a"),
                operator("b", "x", "y"),
                streams=[stream("a", "b.x"), stream("a", "b.y", name="far", remote=True)],
            ),
            "other streams fuse",
        ),
    ],
)
def test_refused(plan: LogicalPlan, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        make_physical_plan(plan)


def test_json_form_comes_back_the_same() -> None:
    rich = dataclasses.replace(
        VALID,
        properties={"rate": 2, "names": Json('["a", "b"]'), "none": None, "on": True},
        attributes={"RECOVERY_ATTEMPTS": 3},
        isolate=True,
    )
    streams = [
        stream("orders", "valid.orders"),
        stream("valid", "revenue.in", locality=Locality.NODE_LOCAL, remote=True),
    ]
    plan = dataclasses.replace(
        chain(ORDERS, rich, dataclasses.replace(REVENUE, terminal=True), streams=streams),
        attributes={"STREAMING_WINDOW_SIZE_MILLIS": 250},
    )
    assert LogicalPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "garbage",
    [
        {},
        {"name": "x", "operators": 3},
        {"name": "x", "operators": [3]},
        {"name": "x", "operators": [{"name": "a", "ports": [{"name": "p", "kind": "sideways"}]}]},
        {"name": "x", "operators": [], "streams": [{"name": "s", "source": 1, "sinks": []}]},
    ],
)
def test_garbage_is_not_a_plan(garbage: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match="not a plan"):
        LogicalPlan.from_json(garbage)


def test_attributes_fall_back_operator_then_default() -> None:
    plan = make_physical_plan(chain(operator("a", attributes={"MEMORY_MB": 64}), streams=[]))
    assert plan.attribute(plan.operators[0], "MEMORY_MB") == 64
    assert plan.attribute(plan.operators[0], "TIMEOUT_WINDOW_COUNT") == 120
    assert plan.logical.attribute("HEARTBEAT_TIMEOUT_MILLIS") == 30_000


# several containers

TOPIC = operator("orders", function=READ_TOPIC)


def homes(plan: PhysicalPlan) -> list[tuple[str, int, int]]:
    return [(one.logical.name, one.id, one.container) for one in plan.operators]


def test_a_topic_is_read_in_every_container_that_needs_it() -> None:
    alone = dataclasses.replace(VALID, isolate=True)
    other = operator("other", "orders")
    streams = [stream("orders", "valid.orders", "other.orders")]
    plan = make_physical_plan(chain(TOPIC, alone, other, streams=streams))
    assert homes(plan) == [
        ("orders", 1, 0),
        ("orders", 2, 1),
        ("valid", 3, 0),
        ("other", 4, 1),
    ]
    assert plan.split_streams == set()
    assert [one.query for one in plan.operators] == ["", "", "valid", "other"]
    assert [one.inputs[0].source for one in plan.operators[2:]] == [1, 2]


def test_instances_share_a_topic_through_an_edge_of_one_publisher() -> None:
    many = dataclasses.replace(VALID, instances=2)
    plan = make_physical_plan(chain(TOPIC, many, streams=[stream("orders", "valid.orders")]))
    assert plan.split_streams == {"orders"}
    assert plan.operators[0].query == "orders"
    assert {one.inputs[0].source for one in plan.operators[1:]} == {1}


def test_known_identities_stay_when_the_plan_changes() -> None:
    many = dataclasses.replace(VALID, instances=2)
    streams = [stream("orders", "valid.orders"), stream("valid", "revenue.in")]
    before = make_physical_plan(chain(ORDERS, many, REVENUE, streams=streams))
    assert homes(before) == [
        ("orders", 1, 0),
        ("valid", 2, 1),
        ("valid", 3, 2),
        ("revenue", 4, 0),
    ]
    more = dataclasses.replace(VALID, instances=3)
    extra = operator("extra", isolate=True)
    after = make_physical_plan(
        chain(extra, ORDERS, more, REVENUE, streams=streams), before.identities
    )
    assert set(homes(before)) <= set(homes(after))
    assert set(homes(after)) - set(homes(before)) == {("valid", 6, 4), ("extra", 5, 3)}
    fewer = make_physical_plan(chain(ORDERS, REVENUE_ALONE, streams=[]), after.identities)
    assert 7 not in {one.id for one in fewer.operators}
    again = make_physical_plan(chain(ORDERS, many, REVENUE, streams=streams), fewer.identities)
    assert homes(again) == homes(before), "an id is never given to somebody else"


REVENUE_ALONE = dataclasses.replace(REVENUE, inputs=())


def test_rows_are_shared_by_one_key() -> None:
    by_sku = dataclasses.replace(VALID, instances=2, attributes={PARTITION_KEY: "sku, day"})
    streams = [stream("orders", "valid.orders", "other.orders")]
    other = operator("other", "orders", instances=3, attributes={PARTITION_KEY: "sku,day"})
    plan = make_physical_plan(chain(ORDERS, by_sku, other, streams=streams))
    assert plan.partition_key("orders") == ("sku", "day")
    differing = dataclasses.replace(other, attributes={})
    with pytest.raises(InvalidArgumentError, match="different keys"):
        make_physical_plan(chain(ORDERS, by_sku, differing, streams=streams))
