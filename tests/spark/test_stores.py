"""Windows in files and tables, written once whatever is repeated; real Delta, real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import CommitProperties, DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType
from deltalake.transaction import Transaction
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from headrace import Application, Batch, Console, Delta, Parquet, Postgres
from headrace.errors import ConfigError, UnavailableError
from headrace.pipeline.declare.stores import Store
from tests.postgres import running_postgres


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_postgres(tmp_path_factory.mktemp("postgres")) as address:
        yield address


def rows(spark: SparkSession, *values: tuple[str, int]) -> DataFrame:
    frame = spark.createDataFrame(list(values), "sku string, n int").repartition(2)
    return frame.withColumn("at", F.lit("2026-01-01T12:00:00Z").cast("timestamp"))


def batch(window: int, *, mode: str = "append", replay: bool = False, query: str = "q") -> Batch:
    return Batch(window, window, replay, query, mode)


def read_parquet(spark: SparkSession, path: Path) -> list[Row]:
    found: list[Row] = spark.read.parquet(str(path)).collect()
    return found


def test_parquet_windows_appear_whole_and_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    store = Parquet(str(path))
    store(rows(spark, ("a", 1), ("b", 2)), batch(7))
    store(rows(spark, ("c", 3)), batch(8))
    store(rows(spark, ("other", 9)), batch(8, replay=True))  # first write wins
    store(rows(spark, ("d", 4)), batch(8, query="q~2"))  # another output's window of that number
    found = read_parquet(spark, path)
    assert sorted(row.n for row in found) == [1, 2, 3, 4]
    assert {row.headrace_window for row in found if row.n < 4} == {
        "0000000000000007.q",
        "0000000000000008.q",
    }
    assert list((path / "_staging").iterdir()) == []

    broken = rows(spark, ("x", 1)).select(F.raise_error(F.lit("no")).cast("int").alias("n"))
    with pytest.raises(Exception, match="no"):
        store(broken, batch(9))
    assert len(read_parquet(spark, path)) == 4, "what is being written is not seen"
    store(rows(spark, ("e", 5)), batch(9, replay=True))
    assert len(read_parquet(spark, path)) == 5
    assert [each.name for each in (path / "_staging").iterdir()] == []


def test_a_delta_window_is_one_commit(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    store = Delta(path)
    assert store(rows(spark, ("a", 1), ("b", 2)), batch(7)) == 2
    assert store(rows(spark, ("c", 3)), batch(9)) == 1
    version = DeltaTable(path).version()
    assert store(rows(spark, ("other", 9)), batch(9, replay=True)) == 0
    assert store(rows(spark, ("other", 9)), batch(8)) == 0, "a zombie's older window"
    assert DeltaTable(path).version() == version
    found = DeltaTable(path).to_pyarrow_table().to_pylist()
    assert sorted((row["sku"], row["n"]) for row in found) == [("a", 1), ("b", 2), ("c", 3)]
    assert found[0]["at"].isoformat() == "2026-01-01T12:00:00+00:00"
    assert DeltaTable(path).transaction_version("q") == 9

    # What the store relies on: of two writers of one window the table lets one through.
    other = DeltaTable(path)
    assert store(rows(spark, ("late", 5)), batch(10)) == 1
    with pytest.raises(CommitFailedError):
        other.create_write_transaction(
            [],
            mode="append",
            schema=other.schema(),
            commit_properties=CommitProperties(app_transactions=[Transaction("q", 10)]),
        )

    assert store(rows(spark, ("d", 4)), batch(7, query="q2", mode="complete")) == 1
    assert [row["n"] for row in DeltaTable(path).to_pyarrow_table().to_pylist()] == [4]


def test_delta_takes_what_fits_and_names_what_does_not(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    store = Delta(path)
    assert store(rows(spark, ("a", 1)), batch(1)) == 1
    version = DeltaTable(path).version()
    wide = rows(spark, ("b", 2)).withColumn("n", F.lit(5_000_000_000))
    with pytest.raises(ConfigError, match="column n is bigint, the table has int"):
        store(wide, batch(2))
    with pytest.raises(ConfigError, match="has no column extra; add it to the table"):
        store(rows(spark, ("b", 2)).withColumn("extra", F.lit(1)), batch(2))
    with pytest.raises(ConfigError, match="column n is bigint"):
        store(wide, batch(2, mode="complete"))
    assert DeltaTable(path).version() == version
    written = {str(each) for each in Path(path).glob("*.parquet")}
    assert written == {uri.removeprefix("file://") for uri in DeltaTable(path).file_uris()}

    # A narrower number is written as the table's, and a column that is left out is null.
    narrow = rows(spark, ("c", 3)).select("sku", F.col("n").cast("smallint").alias("n"))
    assert store(narrow, batch(2)) == 1
    found = {row["sku"]: row for row in DeltaTable(path).to_pyarrow_table().to_pylist()}
    assert (found["c"]["n"], found["c"]["at"]) == (3, None)
    assert spark.read.parquet(*DeltaTable(path).file_uris()).schema["n"].dataType.typeName() == (
        "integer"
    )

    with pytest.raises(ConfigError, match="column gap is interval"):
        Delta(f"{path}2")(spark.sql("SELECT INTERVAL '1' DAY AS gap"), batch(1))
    DeltaTable.create(
        f"{path}3",
        Schema(
            [
                Field("sku", PrimitiveType("string"), nullable=False),
                Field("n", PrimitiveType("integer")),
            ]
        ),
    )
    strict = Delta(f"{path}3")
    with pytest.raises(ConfigError, match="column sku may not be null"):
        strict(rows(spark, ("a", 1)).select("n"), batch(1))
    with pytest.raises(Exception, match="column sku may not be null, and a row has none"):
        strict(rows(spark, ("a", 1)).select(F.expr("nullif(sku, 'a')").alias("sku")), batch(1))
    DeltaTable.create(
        f"{path}4", Schema([Field("sku", PrimitiveType("string"))]), partition_by=["sku"]
    )
    with pytest.raises(ConfigError, match="partitioned by sku"):
        Delta(f"{path}4")(rows(spark, ("a", 1)).select("sku"), batch(1))


def test_parquet_windows_have_one_type_for_a_column(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "table"
    store = Parquet(str(path))
    store(rows(spark, ("a", 1)), batch(1))
    with pytest.raises(ConfigError, match="column n is bigint, the table has int"):
        store(rows(spark, ("b", 2)).withColumn("n", F.lit(5_000_000_000)), batch(2))
    store(rows(spark, ("b", 2)).select("sku", F.col("n").cast("tinyint").alias("n")), batch(2))
    assert sorted(row.n for row in read_parquet(spark, path)) == [1, 2]
    with pytest.raises(ConfigError, match="column headrace_window"):
        store(rows(spark, ("c", 3)).withColumnRenamed("sku", "headrace_window"), batch(3))


def select(address: str, text: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(address) as connection:
        return connection.execute(text.encode()).fetchall()


def test_a_postgres_window_is_one_transaction(spark: SparkSession, database: str) -> None:
    store = Postgres(database, "sales")
    nested = rows(spark, ("a", 1), ("b", 2)).withColumn("more", F.struct(F.col("n").alias("m")))
    assert store(nested, batch(7)) == 2
    assert store(nested.filter("n = 2"), batch(9)) == 1
    assert store(nested, batch(9, replay=True)) == 0
    assert store(nested, batch(8)) == 0, "a zombie's older window"
    found = select(database, "SELECT sku, n, more->>'m', at FROM sales ORDER BY n")
    assert [row[:3] for row in found] == [("a", 1, "1"), ("b", 2, "2"), ("b", 2, "2")]
    assert found[0][3].isoformat().startswith("2026-01-01T12:00:00")
    assert select(database, "SELECT query, window_id FROM headrace_windows") == [("q", 9)]

    # The transaction fails after rows were staged: nothing of it is there, and again it works.
    select_none = "ALTER TABLE sales ADD CONSTRAINT small CHECK (n < 100)"
    with psycopg.connect(database) as connection:
        connection.execute(select_none)
    large = rows(spark, ("c", 1), ("d", 100)).withColumn("more", F.struct(F.col("n").alias("m")))
    with pytest.raises(psycopg.errors.CheckViolation):
        store(large, batch(10))
    assert select(database, "SELECT count(*) FROM sales") == [(3,)]
    assert store(large.filter("n = 1"), batch(10, replay=True)) == 1
    assert select(database, "SELECT count(*) FROM sales") == [(4,)]


def test_postgres_rows_replace_by_key_or_altogether(
    spark: SparkSession, database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "address").write_text(database)
    store = Postgres(f"file:{tmp_path / 'address'}", "public.totals", key=("sku",))
    store(rows(spark, ("a", 1), ("b", 2)), batch(1, mode="update", query="totals"))
    store(rows(spark, ("b", 5)), batch(2, mode="update", query="totals"))
    found = select(database, "SELECT sku, n FROM totals ORDER BY sku")
    assert found == [("a", 1), ("b", 5)]
    store(rows(spark, ("z", 26)), batch(3, mode="complete", query="totals"))
    assert select(database, "SELECT sku, n FROM totals") == [("z", 26)]
    with pytest.raises(UnavailableError, match="cannot be reached"):
        Postgres("host=127.0.0.1 port=1 user=nobody", "t")(rows(spark, ("a", 1)), batch(1))


def test_postgres_writes_what_was_meant(spark: SparkSession, database: str) -> None:
    # The same key twice in a window: the last row counts.
    store = Postgres(database, "latest", key=("sku",))
    twice = spark.createDataFrame(
        [("a", 1), ("b", 1), ("a", 2), ("a", 3), ("b", 2)], "sku string, n int"
    ).coalesce(1)
    assert store(twice, batch(1, query="latest")) == 5
    assert select(database, "SELECT * FROM latest ORDER BY sku") == [("a", 3), ("b", 2)]
    later = spark.createDataFrame([("a", 9), ("a", 8)], "sku string, n int").repartition(1)
    store(later, batch(2, query="latest"))
    assert select(database, "SELECT n FROM latest WHERE sku = 'a'") in ([(8,)], [(9,)])

    # What has parts is JSON: a map an object, bytes base64, what is no number null.
    parts = spark.sql(
        "SELECT map('x', 1, 'y', 2) AS m, "
        "named_struct('raw', X'00ff', 'bad', double('NaN'), 'far', double('inf'), "
        "'at', timestamp '2026-01-01 12:00:00', 'price', 1.50BD, 'inner', map('k', X'01')) AS s, "
        "array(named_struct('q', '\"')) AS l, CAST(NULL AS map<string,int>) AS nothing, "
        "double('NaN') AS number, X'00ff' AS raw"
    )
    assert Postgres(database, "parts")(parts, batch(1, query="parts")) == 1
    ((m, s, inner, nothing, number, raw),) = select(
        database, "SELECT m, s, l, nothing, number, raw FROM parts"
    )
    assert m == {"x": 1, "y": 2}
    assert s["raw"] == "AP8="
    assert (s["bad"], s["far"]) == (None, None)
    assert s["at"].startswith("2026-01-01T12:00:00")
    assert (s["price"], s["inner"]) == (1.5, {"k": "AQ=="})
    assert inner == [{"q": '"'}]
    assert nothing is None
    assert str(number) == "nan"
    assert raw == b"\x00\xff"


def test_postgres_takes_what_fits_and_names_what_does_not(
    spark: SparkSession, database: str
) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "CREATE TABLE narrow (sku varchar(9) NOT NULL, n integer, at timestamptz, "
            "total numeric(6,2), twice integer GENERATED ALWAYS AS (n * 2) STORED)"
        )
    store = Postgres(database, "narrow")
    one = rows(spark, ("a", 1))
    for frame, told in (
        (one.withColumn("n", F.lit(5_000_000_000)), "column n is bigint, the table has integer"),
        (one.withColumn("n", F.lit("1")), "column n is string, the table has integer"),
        (one.withColumn("extra", F.lit(1)), "has no column extra; add it to the table"),
        (one.withColumn("total", F.lit(1.5)), r"column total is double, .* numeric\(6,2\)"),
        (one.withColumn("twice", F.lit(2)), "computes column twice itself"),
        (one.withColumn("sku", F.array("sku")), r"column sku is array<string>"),
        (one.select("n"), "column sku may not be null"),
        (one.withColumn("gone", F.lit(None)), "column gone is void"),
        (one.withColumn("m", F.expr("map(1, 2)")), "column m: the keys of a JSON object are text"),
        (one.withColumn("headrace_part", F.lit(1)), "cannot be called headrace_part"),
    ):
        with pytest.raises(ConfigError, match=told):
            store(frame, batch(1, query="narrow"))
    with pytest.raises(ConfigError, match=r"no unique index on \(sku\)"):
        Postgres(database, "narrow", key=("sku",))(one, batch(1, query="narrow"))
    with pytest.raises(ConfigError, match="the key id is no column"):
        Postgres(database, "narrow", key=("id",))(one, batch(1, query="narrow"))
    with pytest.raises(Exception, match="column sku: a text holds the character 0"):
        store(one.withColumn("sku", F.lit("a\0b")), batch(1, query="narrow"))
    assert select(database, "SELECT count(*) FROM narrow") == [(0,)]
    fits = one.withColumn("n", F.lit(7).cast("smallint"))
    assert store(fits.withColumn("total", F.expr("1.25BD")), batch(1, query="narrow")) == 1
    assert select(database, "SELECT sku, n, total, twice FROM narrow") == [
        ("a", 7, Decimal("1.25"), 14)
    ]


def test_the_console_says_what_it_prints(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    Console(rows_max=1)(rows(spark, ("a", 1), ("b", 2)).drop("at"), batch(7, replay=True))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "window 7 (again)"
    assert lines[1] in ("  {'sku': 'a', 'n': 1}", "  {'sku': 'b', 'n': 2}")
    assert "1 are shown" in lines[2]


def application(store: Store, **options: Any) -> Application:
    app = Application("stored")
    app.topic("events", "s/events", schema="sku string, n int")

    @app.operator
    def doubled(events: DataFrame) -> DataFrame:
        return events.withColumn("n", F.col("n") * 2)

    app.store("doubled", store, **options)
    return app


def test_a_test_leaves_stores_alone(spark: SparkSession, tmp_path: Path) -> None:
    app = application(Parquet(str(tmp_path / "table")))
    results = app.test(spark, events=[{"sku": "a", "n": 2}])
    assert [row.n for row in results["doubled_parquet"]] == [4]
    assert not (tmp_path / "table").exists()
