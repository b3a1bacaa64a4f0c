"""Ordinary PySpark scripts: told from applications by their text, their queries found in it."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.pipeline.plan.scripts import RUN_SCRIPT, is_script, query_names, script_plan

JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("job").getOrCreate()
rows = spark.readStream.format("headrace").option("topic", "a/b").load()
first = rows.writeStream.format("noop").queryName("copies").start()
writer = (
    rows.groupBy("topic").count()
    .writeStream.outputMode("update")
    .format("console")
)
second = writer.start()
rows.writeStream.toTable("t", queryName="to table!")
thread.start()
rows.writeStream.foreachBatch(print).start()
first.awaitTermination()
"""


def test_scripts_are_told_from_applications() -> None:
    assert is_script(JOB)
    assert is_script("spark = SparkSession.builder.getOrCreate()")
    assert is_script("spark = pyspark.sql.SparkSession.builder.getOrCreate()")
    assert not is_script("from pyspark.sql import SparkSession\nfrom my.pipelines import app")
    assert not is_script("from headrace import Application\napp = Application('a')")
    assert not is_script("import headrace\napp = headrace.Application('a')\nx.writeStream")
    assert not is_script("from headrace import Dag\ndag = Dag('a')")
    assert not is_script("from my.pipelines import app")
    assert not is_script("x = 1")
    with pytest.raises(ConfigError, match=r"SyntaxError: .*line 1"):
        is_script("def broken(:")


def test_queries_are_found_in_the_text() -> None:
    assert query_names(JOB) == ("copies", "query_1", "to_table_", "query_2")
    assert query_names("for df in frames: start_it(df)") == ("query_1",)
    twice = 'a.writeStream.queryName("x").start()\nb.writeStream.queryName("x").start()'
    assert query_names(twice) == ("x",)


def test_a_script_is_one_container_of_queries() -> None:
    plan = script_plan("jobs/my job.py", JOB)
    assert plan["name"] == "my-job"
    physical = make_physical_plan(LogicalPlan.from_json(plan))
    assert physical.container_count == 1
    assert [one.query for one in physical.operators] == list(query_names(JOB))
    assert {one.logical.function for one in physical.operators} == {RUN_SCRIPT}
