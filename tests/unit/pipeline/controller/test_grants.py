"""What containers may do at the broker: their application's topics, for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.net.credentials import SCOPE_BYTES_MAX, Grant, grant_bytes, verify_grant
from headrace.pipeline.controller.container_credentials import GRANT_MS, Grants, application_scope
from headrace.pipeline.declare.application import Application
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.logical_json import from_plan, to_plan
from headrace.pipeline.plan.scripts import script_plan
from tests.unit.pipeline import shop_functions

SECRET = b"s" * 32


def shop(**more: Any) -> dict[str, Any]:
    app = Application("shop", **more)
    app.topic("orders", "shop/orders", schema="sku string", on_bad_row="dead_letter")
    app.topic("clicks", "web/clicks-*")
    app.operator(name="valid", to="out/valid")(shop_functions.split)
    return to_plan(app)


def grant_of(plan: dict[str, Any]) -> Grant:
    return Grant((application_scope(LogicalPlan.from_json(plan), 1_000),))


def test_an_application_reads_and_writes_what_its_plan_says() -> None:
    grant = grant_of(shop())
    assert grant.holder == "pipeline shop"
    for stream, topic in (("shop", "orders"), ("web", "clicks-1"), ("_pipeline.shop", "valid")):
        assert grant.may_read(stream, topic)
    for stream, topic in (
        ("out", "valid"),
        ("shop", "orders.dead_letter"),
        ("shop", "valid.dead_letter"),
        ("_pipeline.shop", "valid"),
    ):
        assert grant.may_write(stream, topic)
    for stream, topic in (("shop", "customers"), ("web", "visits"), ("_pipeline.other", "valid")):
        assert not grant.may_read(stream, topic)
        assert not grant.may_write(stream, topic)
    assert not grant.may_write("shop", "orders")
    assert not grant.may_read("out", "valid")
    assert grant.may_publish("pipeline/shop/valid/0")
    assert not grant.may_publish("pipeline/shopping/valid/0")


def test_other_topics_are_those_that_functions_use_by_themselves() -> None:
    plan = shop(other_topics=("crm/*",))
    assert from_plan(Application, plan, resolve=lambda _: shop_functions.split).other_topics == (
        "crm/*",
    )
    grant = grant_of(plan)
    assert grant.may_read("crm", "people")
    assert grant.may_write("crm", "people")
    assert not grant.may_read("hr", "people")


def test_a_script_uses_topics_that_nobody_knows_beforehand() -> None:
    text = "q = spark.readStream.load().writeStream.start()\n"
    grant = grant_of(script_plan("job.py", text))
    assert grant.may_read("any", "topic")
    assert grant.may_write("any", "topic")
    assert not grant.may_publish("pipeline/shop/valid/0")


def test_a_plan_of_many_topics_names_their_streams() -> None:
    app = Application("many")
    for number in range(400):
        app.topic(f"t{number}", f"shop/a-topic-with-a-long-name-{number:03}")
    app.operator(name="valid", inputs={"orders": "t1"}, to="out/valid")(shop_functions.split)
    plan = LogicalPlan.from_json(to_plan(app))
    scope = application_scope(plan, 1)
    assert "shop/*" in scope.reads
    assert "other/*" not in scope.reads
    assert sum(map(len, (*scope.reads, *scope.writes))) < SCOPE_BYTES_MAX


def test_a_grant_is_renewed_in_time_and_when_the_plan_changes() -> None:
    plan = LogicalPlan.from_json(shop())
    grants = Grants(SECRET)
    first = grants.renewed("c", plan, 0)
    assert first is not None
    assert grants.held("c") == first
    assert verify_grant(SECRET, grant_bytes(first), GRANT_MS - 1).holder == "pipeline shop"
    assert grants.renewed("c", plan, GRANT_MS // 4 - 1) is None
    assert grants.renewed("c", plan, GRANT_MS // 4) is not None
    assert grants.renewed("c", replace(plan), GRANT_MS // 4) is not None
    # A controller that starts again knows of none, and writes all of them anew.
    assert Grants(SECRET).renewed("c", plan, 0) is not None
    grants.end("c")
    assert grants.held("c") == ""
    assert SECRET.decode() not in repr(grants)
    assert first not in repr(grants)
