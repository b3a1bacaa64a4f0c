"""headrace pipeline deploy|diff against `headrace up`, with Spark's own word on the state."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.server import Server, running
from tests.unit.pipeline.plan.test_environments import WHEEL, make_wheel

SCRIPT = """
import pyspark.sql.functions as F
from headrace import Application
from own import ANSWER

app = Application("counted", trigger="300 milliseconds", {attributes})
app.topic("numbers", "mine/numbers", schema="n int")

@app.operator(to="mine/counts", output_mode="update", {options})
def {name}(numbers):
    return numbers.groupBy({key}.alias("key")).agg(F.count("*").alias("count"), F.lit(ANSWER))
"""
TEXT_KEY = 'F.expr("cast(n % 2 as string)")'
SETTINGS = """
[controller]
container_heap_mb = 512
[advanced.controller]
restart_delay_ms_min = 200
committed_interval_ms = 500
"""
SECONDS = 300.0  # of a command that starts Spark twice


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("deploy")
    (folder / "settings.toml").write_text(SETTINGS)
    arguments = ("--dev", "--config", str(folder / "settings.toml"))
    with running(folder / "server", arguments=arguments) as started:
        yield started


def write(folder: Path, **parts: str) -> str:
    values = {"name": "counts", "key": 'F.expr("n % 2")', "options": "", "attributes": "", **parts}
    (folder / "counted.py").write_text(SCRIPT.format(**values))
    return str(folder / "counted.py")


def counts(server: Server) -> dict[Any, int]:
    """The last count of every key; each stands there once."""
    lines = server.headrace("consume", "mine/counts").stdout.splitlines()
    rows = [json.loads(line) for line in lines]
    told = [(row["key"], row["count"]) for row in rows]
    assert len(told) == len(set(told)), "no window was published twice"
    return dict(told)


def produce(server: Server, *numbers: int) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in numbers)
    assert server.headrace("produce", "mine/numbers", input=lines).returncode == 0


def until(condition: Callable[[], bool], server: Server) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        logs = server.headrace("pipeline", "logs", "counted").stdout
        assert time.monotonic() < deadline, f"{shown(server)}\n{logs[-5000:]}"
        time.sleep(0.5)


def deploy(server: Server, script: str, *more: str) -> dict[str, Any]:
    done = server.headrace("pipeline", "deploy", script, "--json", *more, seconds=SECONDS)
    assert done.returncode == 0, done.stderr
    deployed: dict[str, Any] = json.loads(done.stdout)
    assert deployed["state"] == "RUNNING"
    return deployed


def diff(server: Server, script: str) -> tuple[int, dict[str, Any]]:
    done = server.headrace("pipeline", "diff", script, "--json", seconds=SECONDS)
    return done.returncode, json.loads(done.stdout)


def shown(server: Server) -> dict[str, Any]:
    url = f"http://{server.addresses['http']}/api/pipelines/counted"
    view: dict[str, Any] = httpx.get(url, auth=("iggy", "iggy"), timeout=30, trust_env=False).json()
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
    produce(server, *range(10))
    first = deploy(server, write(tmp_path))
    until(lambda: counts(server) == {0: 5, 1: 5}, server)

    # A restart runs what was deployed, whatever happened to the file meanwhile.
    other = write(tmp_path, key=TEXT_KEY)
    (container,) = shown(server)["containers"]
    os.kill(container["pid"], signal.SIGKILL)
    produce(server, 0)
    until(lambda: counts(server) == {0: 6, 1: 5}, server)
    assert shown(server)["restarts"] == 1
    assert shown(server)["package"] == first["package"]

    status, answer = diff(server, other)
    assert (status, answer["verdict"]) == (1, "NEW_STATE")
    assert "groups by (string)" in answer["operators"][0]["reasons"][0]
    assert answer["deployed"] == first["package"]
    refused = server.headrace("pipeline", "deploy", other, seconds=SECONDS)
    assert refused.returncode == 1
    assert "--new-state counts" in refused.stderr
    wider = write(tmp_path, attributes="STREAMING_WINDOW_SIZE_MILLIS=250")
    status, answer = diff(server, wider)
    assert (status, answer["verdict"]) == (1, "REFUSED")
    refused = server.headrace("pipeline", "deploy", wider, seconds=SECONDS)
    assert "windows of that width" in refused.stderr
    assert (shown(server)["state"], shown(server)["package"]) == ("RUNNING", first["package"])

    # The running version hands over at a committed window; a renamed operator is the same one.
    renamed = write(tmp_path, name="tally", options='renamed_from="counts"')
    status, answer = diff(server, renamed)
    assert status == 0
    (change,) = answer["operators"]
    assert change == {"name": "tally", "verdict": "COMPATIBLE", "reasons": ["was counts"]}
    (before,) = [one for one in shown(server)["operators"] if one["name"] == "counts"]
    produce(server, 1)
    second = deploy(server, renamed)
    assert second["package"] != first["package"]
    assert int(second["committed_window"], 16) >= int(before["checkpoint_window"], 16)
    until(lambda: counts(server) == {0: 6, 1: 6}, server)  # it counted on from its checkpoint
    (after,) = [one for one in shown(server)["operators"] if one["name"] == "tally"]
    assert after["id"] == before["id"]
    submitted = [one for one in shown(server)["events"] if one["type"] == "SubmitApplication"]
    assert [one["package"] for one in submitted] == [first["package"], second["package"]]
    assert submitted[1]["was"] == first["package"]

    deploy(server, write(tmp_path, name="tally", key=TEXT_KEY), "--new-state", "tally")
    until(lambda: counts(server).items() >= {"0": 6, "1": 6}.items(), server)
    assert counts(server).items() >= {0: 6, 1: 6}.items(), "the old rows stay"
    stopped = server.headrace("pipeline", "stop", "counted")
    assert stopped.returncode == 0, stopped.stderr
    until(lambda: shown(server)["state"] == "STOPPED", server)
    assert server.headrace("pipeline", "remove", "counted").returncode == 0
    assert server.headrace("pipeline", "list", "--json").stdout.strip() == "[]"
    assert not (server.folder / "data/applications/counted").exists()
