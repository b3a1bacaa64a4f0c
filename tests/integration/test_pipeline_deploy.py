"""headrace pipeline deploy|diff against `headrace up`, with Spark's own word on the state."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import Server, running
from tests.unit.pipeline.test_environments import WHEEL, make_wheel

SCRIPT = """
import pyspark.sql.functions as F
from headrace import Application
from own import ANSWER

app = Application("counted", trigger="1 second")
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator(to="mine/counts", output_mode="update", {options})
def {name}(numbers):
    return numbers.groupBy({key}.alias("key")).agg(F.count("*").alias("count"), F.lit(ANSWER))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tmp_path_factory.mktemp("deploy") / "server") as started:
        yield started


def write(folder: Path, **parts: str) -> str:
    values = {"name": "counts", "key": 'F.expr("n % 2")', "options": "", **parts}
    (folder / "counted.py").write_text(SCRIPT.format(**values))
    return str(folder / "counted.py")


def counts(server: Server) -> dict[Any, int]:
    """The last count of every key."""
    lines = server.headrace("consume", "mine/counts").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["key"]: row["count"] for row in rows}


def deploy(server: Server, script: str, *more: str) -> dict[str, Any]:
    """Until it has read what is there."""
    done = server.headrace("pipeline", "deploy", script, "--available-now", *more)
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 300
    while True:
        view = shown(server)
        if view["state"] in ("FINISHED", "FAILED"):
            assert view["state"] == "FINISHED", view["last_error"]
            return view
        assert time.monotonic() < deadline, view
        time.sleep(0.5)


def shown(server: Server) -> dict[str, Any]:
    url = f"http://{server.addresses['http']}/api/pipelines/counted"
    view: dict[str, Any] = httpx.get(url, auth=("iggy", "iggy"), timeout=30).json()
    return view


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_versions_of_a_pipeline(server: Server, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    wheel = make_wheel(tmp_path / "wheels")
    digest = hashlib.sha256(wheel).hexdigest()
    (tmp_path / "requirements.lock").write_text(f"./wheels/{WHEEL} --hash=sha256:{digest}\n")
    for arguments in (("stream", "create", "mine"), ("topic", "create", "mine/numbers")):
        assert server.headrace(*arguments).returncode == 0
    numbers = "".join(f'{{"n": {n}}}\n' for n in range(10))
    assert server.headrace("produce", "mine/numbers", input=numbers).returncode == 0

    deploy(server, write(tmp_path))
    assert counts(server) == {0: 5, 1: 5}

    other = write(tmp_path, key='F.expr("cast(n % 2 as string)")')
    refused = server.headrace("pipeline", "diff", other)
    assert refused.returncode == 1
    assert "NEW_STATE" in refused.stderr
    assert "groups by (string)" in refused.stdout.replace("\n", " ")
    refused = server.headrace("pipeline", "deploy", other)
    assert refused.returncode == 1
    assert "--new-state counts" in refused.stderr

    renamed = write(tmp_path, name="tally", options='renamed_from="counts"')
    fits = server.headrace("pipeline", "diff", renamed, "--json")
    assert fits.returncode == 0, fits.stderr
    (change,) = json.loads(fits.stdout)["operators"]
    assert change == {"name": "tally", "verdict": "COMPATIBLE", "reasons": ["was counts"]}
    assert server.headrace("produce", "mine/numbers", input='{"n": 1}\n').returncode == 0
    (before,) = [one["id"] for one in shown(server)["operators"] if one["name"] == "counts"]
    view = deploy(server, renamed)
    assert counts(server) == {0: 5, 1: 6}, "it counted on from its checkpoint"
    assert [one["id"] for one in view["operators"] if one["name"] == "tally"] == [before]

    fresh = write(tmp_path, name="tally", key='F.expr("cast(n % 2 as string)")')
    deploy(server, fresh, "--new-state", "tally")
    assert {key: count for key, count in counts(server).items() if isinstance(key, str)} == {
        "0": 5,
        "1": 6,
    }
