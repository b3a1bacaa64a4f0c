"""Spark settings of one application, and the state store that its checkpoints are bound to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace import Application
from headrace.errors import ConfigError
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.controller.submission import bound_stores
from headrace.pipeline.plan.spark_conf import (
    DEFAULT_STORE,
    PROVIDER,
    ROCKSDB,
    check_spark_conf,
    read_pinned,
    store_of,
)
from headrace.pipeline.plan.versions import Verdict, compare
from tests.simulator.disk import SimulatedDisk
from tests.simulator.random import SimulatedRandom
from tests.unit.pipeline.plan.test_versions import shop

TRANSFORM = "TransformWithStateInPySpark of (int)"
OFFSETS = f"""v1
{json.dumps({"batchWatermarkMs": 0, "conf": {PROVIDER: DEFAULT_STORE}})}
{{"v":1}}"""


def rows(orders: Any) -> Any:
    return orders


def test_settings_travel_in_the_plan() -> None:
    app = Application("shop", spark_conf={"spark.sql.shuffle.partitions": 8, "spark.x": True})
    app.topic("orders", "shop/orders")
    app.operator(to="shop/rows")(rows)
    assert app.plan()["attributes"]["SPARK_CONF"] == {
        "spark.sql.shuffle.partitions": "8",
        "spark.x": "true",
    }
    again = Application.from_plan(app.plan(), resolve=lambda _: rows)
    assert again.spark_conf == app.spark_conf
    assert again.plan() == app.plan()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("spark.driver.memory", "8g", "MEMORY_MB"),
        ("spark.master", "local", "controller.master"),
        ("spark.authenticate", "false", "controller.spark_conf"),
        ("spark.hadoop.fs.s3a.secret.key", "x", "secret"),
        ("spark.hadoop.fs.azure.account.key.x", "x", "secret"),
        ("shuffle.partitions", "8", "no setting of Spark's"),
        ("spark.x", [1], "a text or a number"),
    ],
)
def test_what_is_said_elsewhere_is_refused_with_the_place(name: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_spark_conf("shop", {name: value})


def test_a_query_that_needs_rocksdb_gets_it_and_others_what_was_stated() -> None:
    assert store_of(["TransformWithStateInPySpark", "Project"], None) == ROCKSDB
    assert store_of(["TransformWithState"], DEFAULT_STORE) == ROCKSDB
    assert store_of(["TransformWithState"], "my.RocksDBStore") == "my.RocksDBStore"
    assert store_of(["Aggregate"], None) == DEFAULT_STORE
    assert store_of(["Aggregate"], ROCKSDB) == ROCKSDB


def test_a_checkpoint_that_is_bound_to_another_store_needs_new_state() -> None:
    def shapes(store: str | None, *state: str) -> Any:
        return {"revenue": {"sources": ["shop/orders"], "state": list(state), "store": store}}

    bound = shapes(DEFAULT_STORE, TRANSFORM)
    found = compare(shop(), shop(), bound, shapes(ROCKSDB, TRANSFORM))
    assert found.verdict is Verdict.NEW_STATE
    (reason,) = found.changes[0].reasons
    assert reason == "keeps its state in RocksDB, its checkpoint is bound to HDFSBacked"
    for old, new in (
        (bound, bound),
        (shapes(None, TRANSFORM), shapes(ROCKSDB, TRANSFORM)),  # no batch was planned yet
        (shapes(DEFAULT_STORE), shapes(ROCKSDB)),  # it keeps no state
    ):
        assert compare(shop(), shop(), old, new).verdict is Verdict.COMPATIBLE


def test_what_a_checkpoint_is_bound_to_is_in_its_newest_offsets() -> None:
    disk = SimulatedDisk(SimulatedRandom(1))
    folder = "/a/shop/checkpoints/revenue/offsets"
    disk.make_folder(folder)
    disk.write_atomic(f"{folder}/9", b"v1\n{}")
    disk.write_atomic(f"{folder}/10", OFFSETS.encode())
    record = ApplicationRecord(
        name="shop", plan=shop(), package="0" * 64, entry="shop.py", start_window_ms=0,
        submitted_ms=0,
    )  # fmt: skip
    assert bound_stores(disk, "/a/shop", record) == {"revenue": DEFAULT_STORE}
    assert bound_stores(disk, "/elsewhere", record) == {}
    assert read_pinned(b"") == read_pinned(b"v1\nnot JSON") == {}
