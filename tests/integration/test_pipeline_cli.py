"""headrace pipeline run|list|show|logs|stop with a pipeline of one's own, against `headrace up`.

The server takes TLS only, so that whoever connects in here (command line, control plane, container,
Spark's driver and workers) shows that it can.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import UnauthenticatedError
from headrace.runtime.system import system_runtime
from headrace.sbp_client.channels import tcp_connect
from tests.integration.server import Server, running

SCRIPT = """
import pyspark.sql.functions as F
from headrace import Application
from factor import FACTOR

app = Application("doubled", trigger="1 second")
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator(to="mine/doubled", output_mode="append")
def doubled(numbers):
    return numbers.where("n is not null").select((F.col("n") * FACTOR).alias("n"))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pipeline")
    (folder / "settings.toml").write_text('[tls]\nmode = "required"\n')
    arguments = ("--dev", "--config", str(folder / "settings.toml"))
    with running(folder / "server", arguments=arguments) as started:
        authority = folder / "server/data/secrets/tls/ca.pem"
        started.environment = {"HEADRACE_TLS_CA": str(authority)}
        yield started


def test_nobody_gets_in_without_tls(server: Server) -> None:
    plain = {"HEADRACE_TLS": "", "HEADRACE_TLS_CA": ""}
    authority = server.environment["HEADRACE_TLS_CA"]
    with_tls, server.environment = server.environment, plain
    try:
        refused = server.headrace("stream", "list")
        assert refused.returncode == 1
        assert "--tls" in refused.stderr
        assert server.headrace("pipeline", "list").returncode == 1
        untrusted = server.headrace("stream", "list", "--tls")
        assert untrusted.returncode == 1
        assert "CERTIFICATE_VERIFY_FAILED" in untrusted.stderr
        for flags in (
            ("--tls-ca", authority),
            ("--tls", "--tls-ca", authority, "--tls-server-name", "localhost"),
            ("--tls-insecure",),
        ):
            assert server.headrace("stream", "list", "--json", *flags).stdout.strip() == "[]"
        assert server.headrace("pipeline", "list", "--json", *flags).stdout.strip() == "[]"
        wrong = server.headrace("stream", "list", "--tls-ca", authority, "--tls-server-name", "x")
        assert "Hostname mismatch" in wrong.stderr
        missing = server.headrace("stream", "list", "--tls-ca", "/missing.pem")
        assert (missing.returncode, "/missing.pem" in missing.stderr) == (2, True)
    finally:
        server.environment = with_tls
    assert "https://" in server.log
    runtime = system_runtime()

    async def ask(address: str) -> None:
        await tcp_connect(runtime, address, client_id="plain")()

    for name in ("placement_manager", "data_node"):
        with pytest.raises(UnauthenticatedError, match="TLS"):
            asyncio.run(ask(server.addresses[name]))


def test_a_pipeline_from_the_shell(server: Server, tmp_path: Path) -> None:
    (tmp_path / "doubled.py").write_text(SCRIPT)
    (tmp_path / "factor.py").write_text("FACTOR = 2\n")
    for arguments in (
        ("stream", "create", "mine"),
        ("topic", "create", "mine/numbers", "--partitions", "2"),
    ):
        assert server.headrace(*arguments).returncode == 0
    lines = "".join(f'{{"n": {n}}}\n' for n in range(500)) + "not json\n"
    assert server.headrace("produce", "mine/numbers", input=lines).returncode == 0

    done = server.headrace("pipeline", "run", str(tmp_path / "doubled.py"), "--available-now")
    assert done.returncode == 0, done.stderr + server.headrace("pipeline", "logs", "doubled").stdout
    assert "FINISHED" in done.stderr
    results = server.headrace("consume", "mine/doubled").stdout.splitlines()
    assert sorted(json.loads(line)["n"] for line in results) == [2 * n for n in range(500)]

    (listed,) = json.loads(server.headrace("pipeline", "list", "--json").stdout)
    assert (listed["name"], listed["state"]) == ("doubled", "FINISHED")
    shown = json.loads(server.headrace("pipeline", "show", "doubled", "--json").stdout)
    assert shown["rows"] == 501
    assert {one["name"] for one in shown["operators"]} == {"numbers", "doubled"}
    assert "StartContainer" in {event["type"] for event in shown["events"]}
    assert "doubled" in server.headrace("pipeline", "show", "doubled").stdout
    assert server.headrace("pipeline", "logs", "doubled").returncode == 0

    # What was submitted is what runs: the package is named by its content.
    (tmp_path / "factor.py").write_text("FACTOR = 3\n")
    assert server.headrace("produce", "mine/numbers", input='{"n": 1000}\n').returncode == 0
    again = server.headrace("pipeline", "run", str(tmp_path / "doubled.py"), "--available-now")
    assert again.returncode == 0, again.stderr
    results = server.headrace("consume", "mine/doubled").stdout.splitlines()
    assert len(results) == 501, "it goes on from its checkpoint"
    assert 3000 in [json.loads(line)["n"] for line in results]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("x = 1", "Application"),
        ("import headrace\nraise ValueError('my own words')", "my own words"),
        ("def broken(:", "SyntaxError"),
    ],
)
def test_a_script_that_cannot_run_is_refused_in_its_own_words(
    server: Server, tmp_path: Path, script: str, says: str
) -> None:
    (tmp_path / "wrong.py").write_text(script)
    done = server.headrace("pipeline", "run", str(tmp_path / "wrong.py"))
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr


JOB = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("job").getOrCreate()
numbers = spark.readStream.format("headrace").option("topic", "jobs/in").option(
    "startingOffsets", "earliest"
).load()
out = numbers.select("payload").writeStream.format("headrace").option("topic", "jobs/out")
out.queryName("copies").start().awaitTermination()
"""


TWICE = """
import pyspark.sql.functions as F
from headrace import Application

app = Application("twice")
app.topic("numbers", "jobs/in", schema="n int")

@app.operator(to="jobs/twice")
def twice(numbers):
    return numbers.select((F.col("n") * 2).alias("n"))
"""


def test_a_script_from_the_shell_and_a_backfill_beside_it(server: Server, tmp_path: Path) -> None:
    """The script is an ordinary one: where the broker is comes from its environment."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "twice.py").write_text(TWICE)
    for arguments in (
        ("stream", "create", "jobs"),
        ("topic", "create", "jobs/in"),
        ("topic", "create", "jobs/out"),
    ):
        assert server.headrace(*arguments).returncode == 0
    lines = "".join(f'{{"n": {n}}}\n' for n in range(20))
    assert server.headrace("produce", "jobs/in", input=lines).returncode == 0

    done = server.headrace("pipeline", "run", str(tmp_path / "job.py"), "--available-now")
    assert done.returncode == 0, done.stderr + server.headrace("pipeline", "logs", "job").stdout
    copies = server.headrace("consume", "jobs/out").stdout.splitlines()
    assert sorted(json.loads(line)["n"] for line in copies) == list(range(20))
    shown = json.loads(server.headrace("pipeline", "show", "job", "--json").stdout)
    assert [(one["name"], one["rows_out"]) for one in shown["operators"]] == [("copies", 20)]

    span = ("--from", '{"0": 5}', "--to", '{"0": 8}', "--backfill-name", "again")
    done = server.headrace("pipeline", "run", str(tmp_path / "twice.py"), *span)
    assert done.returncode == 0, done.stderr
    results = server.headrace("consume", "jobs/twice.again").stdout.splitlines()
    assert sorted(json.loads(line)["n"] for line in results) == [10, 12, 14]
    assert server.headrace("topic", "show", "jobs/twice").returncode != 0, "it keeps to itself"
    names = {
        one["name"] for one in json.loads(server.headrace("pipeline", "list", "--json").stdout)
    }
    assert {"job", "twice.again"} <= names
