"""The pipeline API without Spark: declarations, wiring errors with their remedy, the plan."""

import subprocess
import sys
from typing import Any

import pytest

from headrace import Application
from headrace.errors import ConfigError


def shop() -> Application:
    app = Application("shop", trigger="1 second", HEARTBEAT_TIMEOUT_MILLIS=5000)
    app.topic("orders", "shop/orders", schema="sku string, qty int", starting="latest")

    @app.operator(outputs=("ok", "late"))
    def split(orders: Any, spark: Any, *, minimum: int = 1) -> Any: ...

    @app.operator(inputs={"rows": "split.ok"}, to="shop/revenue", key="sku", MEMORY_MB=512)
    def revenue(rows: Any) -> Any: ...

    @app.sink(inputs={"rows": "split.late"})
    def store(rows: Any, batch: Any) -> None: ...

    return app


def test_the_plan_has_apexs_shape() -> None:
    plan = shop().plan()
    assert plan["name"] == "shop"
    assert plan["attributes"] == {
        "APPLICATION_NAME": "shop",
        "TRIGGER": "1 second",
        "HEARTBEAT_TIMEOUT_MILLIS": 5000,
    }
    operators = {operator["name"]: operator for operator in plan["operators"]}
    assert list(operators) == ["orders", "split", "revenue", "store"]
    assert operators["orders"]["class"] == "headrace.pipeline.declare.stages:read_topic"
    assert operators["orders"]["properties"]["topic"] == "shop/orders"
    assert operators["orders"]["properties"]["starting"] == "latest"
    assert operators["split"]["class"] == f"{__name__}:shop.<locals>.split"
    assert operators["split"]["properties"] == {"minimum": 1}
    assert [(port["name"], port["kind"]) for port in operators["split"]["ports"]] == [
        ("orders", "input"),
        ("ok", "output"),
        ("late", "output"),
    ]
    assert operators["revenue"]["attributes"] == {
        "MEMORY_MB": 512,
        "OUTPUT_TOPIC": "shop/revenue",
        "OUTPUT_KEY": "sku",
    }
    assert plan["streams"] == [
        {
            "name": "orders",
            "source": {"operatorName": "orders", "portName": "output"},
            "sinks": [{"operatorName": "split", "portName": "orders"}],
            "locality": None,
            "remote": False,
        },
        {
            "name": "split_ok",
            "source": {"operatorName": "split", "portName": "ok"},
            "sinks": [{"operatorName": "revenue", "portName": "rows"}],
            "locality": None,
            "remote": False,
        },
        {
            "name": "split_late",
            "source": {"operatorName": "split", "portName": "late"},
            "sinks": [{"operatorName": "store", "portName": "rows"}],
            "locality": None,
            "remote": False,
        },
    ]
    assert plan["outputs"][0] == {
        "operator": "revenue",
        "port": "output",
        "topic": "shop/revenue",
        "key": "sku",
        "mode": "append",
        "store": None,
        "delivery": "exactly-once",
    }


def test_stages_may_be_declared_before_what_feeds_them() -> None:
    app = Application("a")

    @app.operator(to="s/t")
    def second(first: Any) -> Any: ...

    @app.operator
    def first(events: Any) -> Any: ...

    app.topic("events", "s/events")
    assert [stage.name for stage in app.ordered()] == ["first", "second"]


def test_an_unknown_port_is_answered_with_what_there_is() -> None:
    app = shop()

    @app.operator(to="shop/other")
    def other(order: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"'order'.*orders, split\.ok, split\.late, revenue"):
        app.plan()


def test_one_of_several_outputs_must_be_named() -> None:
    app = shop()

    @app.operator(to="shop/other")
    def other(split: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"'split\.ok' or 'split\.late'"):
        app.plan()


def test_a_loop_is_shown() -> None:
    app = Application("a")

    @app.operator(to="s/t")
    def one(two: Any) -> Any: ...

    @app.operator
    def two(one: Any) -> Any: ...

    with pytest.raises(ConfigError, match="one -> two -> one"):
        app.plan()


def test_an_application_that_writes_nothing_is_refused() -> None:
    app = Application("a")
    app.topic("events", "s/events")

    @app.operator
    def one(events: Any) -> Any: ...

    with pytest.raises(ConfigError, match="writes nothing"):
        app.plan()


def refused(text: str) -> Any:
    return pytest.raises(ConfigError, match=text)


def test_declarations_are_checked_where_they_are_made() -> None:
    with refused("trigger"):
        Application("a", trigger="soon")
    with refused("application name"):
        Application("a b")
    with refused("unknown argument colour"):
        Application("a", colour="red")
    app = Application("a")
    with refused("write stream/topic"):
        app.topic("events", "events")
    with refused("on_bad_row is one of"):
        app.topic("events", "s/events", on_bad_row="ignore")
    with refused("starting is"):
        app.topic("events", "s/events", starting="newest")
    app.topic("events", "s/events")
    with refused("declared twice"):
        app.topic("events", "s/other")
    with refused("given; rename it"):
        app.topic("spark", "s/other")
    with refused("has a key but no topic"):
        app.operator(key="x")(lambda_operator)
    with refused("output_mode is one of"):
        app.operator(output_mode="replace")(lambda_operator)
    with refused(r"its ports are events"):
        app.operator(inputs={"event": "events"})(lambda_operator)
    with refused("operator of its own"):
        app.operator(outputs=("a", "b"), to="s/t")(lambda_operator)
    with refused("MEMORY_MB"):
        app.operator(memory_mb=5)(lambda_operator)
    with refused("lambda_operator has no attribute MEMORY_GB; did you mean MEMORY_MB"):
        app.operator(MEMORY_GB=5)(lambda_operator)
    with refused("attribute MEMORY_MB of lambda_operator is int, like 1024: '5'"):
        app.operator(MEMORY_MB="5")(lambda_operator)
    with refused("application a has no attribute HEARTBEAT_INTERVAL; did you mean"):
        Application("a", HEARTBEAT_INTERVAL=1)
    with refused("port events of lambda_operator has no attribute MEMORY_MB"):
        app.operator(ports={"events": {"MEMORY_MB": 1}})(lambda_operator)
    with refused("lambda_operator has no port other"):
        app.operator(ports={"other": {"BUFFER_MEMORY_MB": 1}})(lambda_operator)
    with refused(r"live= of lambda_operator names limit; its properties are none"):
        app.operator(live=("limit",))(lambda_operator)
    with refused("instances of lambda_operator must be 1 or more"):
        app.operator(instances=0)(lambda_operator)
    with refused("columns= adds some of them to a schema"):
        app.topic("raw", "s/raw", columns=("offset",))
    with refused("columns is one of stream, topic"):
        app.topic("raw", "s/raw", schema="n int", columns=("colour",))


def test_metrics_streams_and_hooks_are_checked() -> None:
    app = shop()
    with refused("a metric belongs to an operator; 'orders' is none"):
        app.metric("orders", n="count(1)")
    with refused("split has no output 'output'; it has ok, late"):
        app.metric("split", n="count(1)")
    with refused("name the metric"):
        app.metric("split", port="ok")
    with refused("aggregate is one of sum, min"):
        app.metric("split", port="ok", n="count(1)", aggregate="median")
    with refused("'rows' is counted by itself"):
        app.metric("split", port="ok", rows="count(1)")
    app.metric("split", port="ok", n="count(1)")
    with refused("split has the metric n already"):
        app.metric("split", port="ok", n="max(1)")
    with refused("locality is one of"):
        app.stream("split.ok", locality="MOON_LOCAL")
    app.stream("split.ok", locality="NODE_LOCAL")
    with refused("declared twice"):
        app.stream("split.ok")
    with refused("takes the window id"):
        app.committed(lambda: None)
    app.committed("nobody")(lambda window: None)
    with refused(r"committed\('nobody'\): there is no such operator"):
        app.plan()
    app.hooks.clear()
    app.stream("split.early")
    with refused(r"stream of 'split.early': there is orders, split\.ok"):
        app.plan()


def lambda_operator(events: Any) -> Any: ...


def test_signatures_that_say_nothing_are_refused() -> None:
    app = Application("a")

    def everything(*events: Any) -> Any: ...
    def nothing() -> Any: ...
    def no_default(events: Any, *, limit: int) -> Any: ...
    def deep(events: Any, *, limits: Any = ()) -> Any: ...
    def two(a: Any, b: Any, batch: Any) -> None: ...

    with refused("names are the input ports"):
        app.operator(everything)
    with refused("has no input"):
        app.operator(nothing)
    with refused("limit needs a default"):
        app.operator(no_default)
    with refused("properties are text, numbers"):
        app.operator(deep)
    with refused("join them in an operator first"):
        app.sink(two)


def test_importing_the_application_imports_nothing_heavy() -> None:
    code = (
        "import sys; from headrace import Application; Application('a')\n"
        "heavy = {'pyspark', 'numpy', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_module_spark_looks_for_imports_nothing_heavy_either() -> None:
    code = (
        "import sys, pyspark.sql.datasource; before = set(sys.modules)\n"
        "import pyspark_headrace\n"
        "assert pyspark_headrace.DefaultSource.name() == 'headrace'\n"
        "new = set(sys.modules) - before\n"
        "assert not [m for m in new if m.split('.')[0] in ('pyarrow', 'numpy', 'asyncio')], new"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
