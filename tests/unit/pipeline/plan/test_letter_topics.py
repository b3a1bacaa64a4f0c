from __future__ import annotations

from headrace.pipeline.declare.application import Application
from headrace.pipeline.plan.loading import Run, apply_run
from headrace.pipeline.plan.logical import letter_topics
from headrace.pipeline.plan.logical_json import from_plan, to_plan


def test_every_operator_has_its_topic() -> None:
    app = Application("shop")
    app.topic("orders", "shop/orders", schema="sku string, qty int", on_bad_row="dead_letter")
    app.topic("prices", "market/prices", schema="sku string, price double")

    @app.operator(to="shop/totals")
    def totals(orders, prices):  # type: ignore[no-untyped-def]  # as users write them
        return orders.join(prices, "sku")

    assert letter_topics(to_plan(app)) == {
        "orders": ("shop/orders.dead_letter",),
        "prices": ("market/prices.dead_letter",),
        "totals": ("shop/totals.dead_letter", "market/totals.dead_letter"),
    }
    backfill = to_plan(apply_run(app, Run(name="b1", starting="earliest")))
    assert letter_topics(backfill)["orders"] == ("shop/orders.dead_letter.b1",)
    assert from_plan(Application, backfill, resolve=lambda name: totals).letters_suffix == ".b1"
