"""Stores as they are declared: what plans say of them and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Application, Console, Parquet, Postgres
from headrace.errors import ConfigError
from headrace.pipeline.declare.stores import Store


def application(store: Store, **options: Any) -> Application:
    app = Application("stored")
    app.topic("events", "s/events", schema="sku string, n int")

    @app.operator
    def doubled(events: Any) -> Any:
        return events

    app.store("doubled", store, **options)
    return app


def test_plans_say_how_stores_deliver() -> None:
    app = application(Postgres("env:DB", "t", key=("sku",)), output_mode="update", name="sales")
    plan = app.plan()
    (output,) = plan["outputs"]
    assert (output["store"], output["delivery"]) == ("postgres t", "exactly-once")
    again = Application.from_plan(plan, resolve=lambda _: app.stages["doubled"].function)
    assert again.stages["sales"].function == Postgres("env:DB", "t", key=("sku",))
    assert again.plan() == plan
    (output,) = application(Console()).plan()["outputs"]
    assert output["delivery"] == "at-least-once"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Parquet("s3a://bucket/x"), "use Delta"),
        (lambda: Postgres("host=h password=secret", "t"), "env:NAME"),
        (lambda: Postgres("postgresql://u:secret@h/d", "t"), "env:NAME"),
        (lambda: Postgres("env:DB", "t; drop table x"), "schema.table"),
        (lambda: application(Parquet("/x"), output_mode="complete"), "append or update"),
        (lambda: application(Postgres("env:DB", "t"), output_mode="update"), "key"),
    ],
)
def test_what_cannot_be_stored_is_told_before_launch(make: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make()
