"""What a new version of an application keeps of the old one."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Application
from headrace.errors import InvalidArgumentError
from headrace.pipeline.container.container_session import code_for_executors
from headrace.pipeline.container.query_start import checkpoint_of
from headrace.pipeline.plan.deploy import Deployed, deploy_info
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.pipeline.plan.versions import (
    Verdict,
    carry_over,
    check_deployable,
    compare,
    rename_keys,
)

Plan = dict[str, Any]


def shop(
    *,
    topic: str = "shop/orders",
    name: str = "revenue",
    renamed_from: str | None = None,
    to: str = "shop/revenue",
    mode: str = "append",
    more: tuple[str, ...] = (),
    **attributes: Any,
) -> Plan:
    app = Application("shop", **attributes)
    app.topic("orders", topic)

    @app.operator
    def valid(orders: Any) -> Any:
        return orders

    def result(valid: Any) -> Any:
        return valid

    app.operator(name=name, renamed_from=renamed_from, to=to, output_mode=mode)(result)
    for each in more:
        app.operator(name=each, to=f"shop/{each}")(result)
    return app.plan()


def verdicts(old: Plan, new: Plan, *shapes: Any) -> dict[str, str]:
    return {one.operator: one.verdict.name for one in compare(old, new, *shapes).changes}


def reason(old: Plan, new: Plan, *shapes: Any) -> str:
    return " ".join(text for one in compare(old, new, *shapes).changes for text in one.reasons)


def test_the_same_and_a_compatible_change() -> None:
    assert verdicts(shop(), shop()) == {"revenue": "COMPATIBLE"}
    assert compare(shop(), shop()).verdict is Verdict.COMPATIBLE
    moved = compare(shop(), shop(to="shop/elsewhere"))
    assert moved.verdict is Verdict.COMPATIBLE
    assert "writes to shop/elsewhere" in moved.changes[0].reasons[0]


def test_other_topics_and_another_output_mode_need_new_state() -> None:
    assert verdicts(shop(), shop(topic="shop/returns")) == {"revenue": "NEW_STATE"}
    assert "reads shop/returns instead of shop/orders" in reason(shop(), shop(topic="shop/returns"))
    assert verdicts(shop(), shop(mode="update")) == {"revenue": "NEW_STATE"}


def test_the_state_decides_when_it_is_known() -> None:
    def shapes(*state: str, sources: tuple[str, ...] = ("shop/orders",)) -> Any:
        return {"revenue": {"sources": list(sources), "state": list(state)}}

    stateless, sums = shapes(), shapes("groups by (string) with sum (double)")
    assert verdicts(shop(), shop(mode="update"), stateless, stateless) == {"revenue": "COMPATIBLE"}
    assert verdicts(shop(), shop(mode="update"), sums, sums) == {"revenue": "NEW_STATE"}
    assert verdicts(shop(), shop(), sums, sums) == {"revenue": "COMPATIBLE"}
    other = shapes("groups by (int) with sum (double)")
    assert verdicts(shop(), shop(), sums, other) == {"revenue": "NEW_STATE"}
    assert "keeps the state groups by (int)" in reason(shop(), shop(), sums, other)
    turned = shapes(sources=("shop/orders", "shop/a")), shapes(sources=("shop/a", "shop/orders"))
    assert verdicts(shop(), shop(), *turned) == {"revenue": "NEW_STATE"}
    assert compare(shop(), shop(), sums, sums).shapes_compared
    assert not compare(shop(), shop()).shapes_compared


def test_operators_may_come_and_go_but_not_in_the_same_step() -> None:
    assert verdicts(shop(), shop(more=("extra",))) == {
        "revenue": "COMPATIBLE",
        "extra": "COMPATIBLE",
    }
    assert verdicts(shop(more=("extra",)), shop()) == {
        "revenue": "COMPATIBLE",
        "extra": "COMPATIBLE",
    }
    renamed = compare(shop(), shop(name="income"))
    assert [one.operator for one in renamed.of(Verdict.NEW_STATE)] == ["income"]
    assert 'renamed_from="revenue"' in renamed.of(Verdict.NEW_STATE)[0].reasons[0]


def test_a_renamed_operator_goes_on() -> None:
    new = shop(name="income", renamed_from="revenue")
    assert verdicts(shop(), new) == {"income": "COMPATIBLE"}
    deployed = carry_over(shop(), new)
    assert verdicts(deployed, new) == {"income": "COMPATIBLE"}, "the declaration may stay"


@pytest.mark.parametrize(
    ("new", "says"),
    [
        (shop(name="income", renamed_from="profit"), "does not have"),
        (shop(name="income", renamed_from="valid"), "still declared"),
        (shop(STREAMING_WINDOW_SIZE_MILLIS=1000), "window ids count"),
        (shop() | {"name": "store"}, "another application"),
    ],
)
def test_what_is_refused(new: Plan, says: str) -> None:
    comparison = compare(shop(), new)
    assert comparison.verdict is Verdict.REFUSED
    assert says in comparison.changes[0].reasons[0]
    with pytest.raises(InvalidArgumentError, match="is refused"):
        check_deployable(comparison, ["income", "shop", "store"])


def test_state_is_dropped_only_by_name() -> None:
    comparison = compare(shop(), shop(topic="shop/returns"))
    with pytest.raises(InvalidArgumentError, match="--new-state revenue"):
        check_deployable(comparison, ())
    check_deployable(comparison, ["revenue"])
    with pytest.raises(InvalidArgumentError, match="no operator sales"):
        check_deployable(compare(shop(), shop()), ["sales"])


def checkpoints(plan: Plan) -> dict[str, str]:
    physical = make_physical_plan(LogicalPlan.from_json(plan))
    infos = [
        deploy_info(physical, one, Deployed(1, -1, ("127.0.0.1", 1))) for one in physical.operators
    ]
    return {info.name: checkpoint_of(info.name, info) for info in infos}


def test_checkpoints_are_kept_over_versions() -> None:
    assert checkpoints(shop()) == {
        "orders": "checkpoints/orders",
        "valid": "checkpoints/valid",
        "revenue": "checkpoints/revenue",
    }
    second = carry_over(shop(), shop(name="income", renamed_from="revenue", more=("extra",)))
    assert checkpoints(second)["income"] == "checkpoints/revenue"
    assert checkpoints(second)["extra"] == "checkpoints/extra"

    third = carry_over(second, shop(name="income"), fresh=["income"])
    assert checkpoints(third)["income"] == "checkpoints/revenue~2"
    assert "extra" not in checkpoints(third)

    fourth = carry_over(third, shop(name="income", more=("extra", "revenue")))
    assert checkpoints(fourth)["income"] == "checkpoints/revenue~2", "kept from now on"
    assert checkpoints(fourth)["extra"] == "checkpoints/extra~2", "another than the first one"
    assert checkpoints(fourth)["revenue"] == "checkpoints/revenue~3"

    # As a plan is kept that was changed at run time.
    kept = LogicalPlan.from_json(fourth).to_json()
    fifth = carry_over(kept, shop(name="income", more=("extra",)), fresh=["income"])
    assert checkpoints(fifth)["income"] == "checkpoints/revenue~4"
    assert verdicts(kept, shop(name="income", more=("extra",)))["income"] == "COMPATIBLE"


def test_what_is_kept_by_name_is_renamed() -> None:
    ids = {"orders.0": 1, "revenue.0": 2, "revenue.1": 3, "orders@1": 4, "revenue": 5}
    assert rename_keys(ids, {"income": "revenue", "orders": "orders"}) == {
        **{"orders.0": 1, "income.0": 2, "income.1": 3},
        **{"orders@1": 4, "income": 5},
    }


def test_dead_letters_have_their_operators_checkpoint_name() -> None:
    plan = carry_over(shop(), shop(name="income", renamed_from="revenue"), fresh=["income"])
    physical = make_physical_plan(LogicalPlan.from_json(plan))
    info = deploy_info(physical, physical.operators[-1], Deployed(1, -1, ("127.0.0.1", 1)))
    assert checkpoint_of("income_dead_letter", info) == "checkpoints/revenue~2_dead_letter"


def test_executors_of_a_cluster_get_the_drivers_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/apps/shop/packages/h:/apps/.environments/e")
    assert code_for_executors("local[2]") == {}
    assert code_for_executors("spark://h:7077") == {
        "spark.executorEnv.PYTHONPATH": "/apps/shop/packages/h:/apps/.environments/e"
    }
