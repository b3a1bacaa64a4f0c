"""What one run changes: properties, and the name, span and outputs of a backfill."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import Application
from headrace.cli.pipeline.submission import add_run, make_run
from headrace.errors import ConfigError
from headrace.pipeline.plan.describe import describe
from headrace.pipeline.plan.loading import (
    RUN_FILE,
    Run,
    apply_run,
    format_run,
    load_application,
    parse_run,
)
from tests.unit.pipeline import shop_functions as functions
from tests.unit.pipeline.declare.test_dag import decorated


def shop() -> Application:
    app = Application("shop")
    app.topic("orders", "shop/orders")
    app.topic("prices", "shop/prices")
    app.operator(to="shop/valid")(functions.split)
    app.operator(inputs={"rows": "split"}, to="shop/totals")(functions.totals)
    return app


def test_a_backfill_is_an_application_of_its_own() -> None:
    run = parse_run(format_run(Run(name="b1", starting="2026-01-01", ending={"orders": "100"})))
    app = apply_run(shop(), run)
    assert app.name == "shop.b1"
    assert [stage.to for stage in app.stages.values()] == ["shop/valid.b1", "shop/totals.b1"]
    assert app.letters_suffix == ".b1", "dead letters of the live pipeline are its own"
    orders, prices = app.topics.values()
    assert (orders.starting, orders.ending) == ("2026-01-01", "100")
    assert (prices.starting, prices.ending) == ("2026-01-01", None)
    app.plan()


def test_properties_are_set_with_the_type_of_their_default() -> None:
    run = make_run(None, None, "", ["split.minimum=7", "split.name=a=b"])
    assert not run.backfill
    app = apply_run(decorated(), run)
    assert app.name == "shop"
    assert app.stages["split"].properties == {"minimum": 7, "name": "a=b"}
    assert app.letters_suffix == ""
    assert app.hooks == decorated().hooks
    assert app.plan()["streams"] == decorated().plan()["streams"]
    for wrong, says in (
        ("split.minimum=much", "minimum of split is int"),
        ("split.colour=red", "no property colour"),
        ("spilt.minimum=1", "no operator spilt"),
    ):
        with pytest.raises(ConfigError, match=says):
            apply_run(decorated(), make_run(None, None, "", [wrong]))


def test_a_backfill_never_writes_where_the_pipeline_does() -> None:
    with pytest.raises(ConfigError, match=r"sink store .*--set store.<property>"):
        apply_run(decorated(), make_run(["earliest"], None, "b", None))
    app = apply_run(decorated(), make_run(["earliest"], None, "b", ["store.folder=/tmp/b"]))
    assert app.stages["store"].properties["folder"] == "/tmp/b"


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (Run(name="b", starting="yesterday"), "a time like"),
        (Run(name="b", starting={"order": "5"}), "no topic port order; there is orders, prices"),
        (Run(starting="5"), "needs a name"),
        (Run(name="a/b", starting="5"), "needs a name"),
    ],
)
def test_what_cannot_be_a_backfill_is_refused(run: Run, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        apply_run(shop(), run)


def test_a_damaged_run_file_is_refused() -> None:
    for data in (b"", b"[]", b'{"colour": 1}', b'{"starting": 5}'):
        with pytest.raises(ConfigError, match=RUN_FILE):
            parse_run(data)


def test_the_command_line_says_it_by_port_or_for_all() -> None:
    both = make_run(["orders=5", 'prices={"0": 1}'], ["2026-01-01"], "", None)
    assert both.starting == {"orders": "5", "prices": '{"0": 1}'}
    assert both.ending == "2026-01-01"
    assert both.name.startswith("backfill-")
    assert both == make_run(["orders=5", 'prices={"0": 1}'], ["2026-01-01"], "", None)
    assert make_run(["6"], None, "", None).name != both.name
    package: dict[str, Any] = {"entry": "a.py", "files": {"a.py": ""}}
    assert add_run(package, make_run(None, None, "", None)) == package
    assert set(add_run(package, both)["files"]) == {"a.py", RUN_FILE}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # loading adds to it
    before = list(sys.path), dict(sys.modules)
    yield tmp_path
    sys.path[:] = before[0]
    for name in set(sys.modules) - set(before[1]):
        del sys.modules[name]


SHOP = """
from headrace import Dag

def valid(orders, *, minimum=1): ...

dag = Dag("shop")
dag.add_topic("orders", "shop/orders")
dag.add_operator("valid", valid, to="shop/valid")
dag.add_stream("raw", "orders", "valid")
"""


def test_a_package_is_loaded_from_code_from_json_and_with_its_run(package: Path) -> None:
    (package / "shop_dag.py").write_text(SHOP)
    app = load_application(str(package), "shop_dag.py")
    assert app.stages["valid"].reference == "shop_dag:valid"
    plan = describe(str(package), "shop_dag.py")
    (package / "plan.json").write_text(json.dumps(plan))
    assert describe(str(package), "plan.json") == plan
    (package / RUN_FILE).write_bytes(format_run(Run(name="b", starting="earliest")))
    assert describe(str(package), "plan.json")["name"] == "shop.b"
    assert load_application(str(package), "shop_dag:dag").name == "shop.b"


def test_a_json_plan_names_only_functions_of_its_package(package: Path) -> None:
    (package / "shop_dag.py").write_text(SHOP)
    plan = describe(str(package), "shop_dag.py")
    for reference, says in (
        ("os:system", "has no module os"),
        ("shop_dag:dag", "no function"),
        ("shop_dag:missing", "no function"),
        ("json.decoder:scanstring", "has no module json.decoder"),
    ):
        plan["operators"][1]["class"] = reference
        (package / "plan.json").write_text(json.dumps(plan))
        with pytest.raises(ConfigError, match=says):
            load_application(str(package), "plan.json")
    # A module of that name that was loaded from elsewhere is not the package's.
    (package / "json.py").write_text("def dumps(orders): ...")
    plan["operators"][1]["class"] = "json:dumps"
    (package / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(ConfigError, match="outside the package"):
        load_application(str(package), "plan.json")
