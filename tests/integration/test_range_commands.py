"""`headrace node` and `headrace range` against a running data plane."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import ConfigError, NotFoundError
from headrace.testing import LocalBroker
from headrace.wire.iggy.messages.messages import Message


@pytest.fixture
def broker() -> Any:
    with LocalBroker() as started:
        client = started.client()
        client.run(lambda c: c.create_stream("shop"))
        client.run(lambda c: c.create_topic("shop", "orders"))
        client.run(lambda c: c.send("shop", "orders", [Message(b"one"), Message(b"two")]))
        yield started


def test_nodes_and_ranges_are_listed_and_shown(broker: LocalBroker) -> None:
    where = [
        "--placement-managers", broker.addresses["placement_manager"],
        "--secret", f"file:{broker._folder}/secrets/cluster",
    ]  # fmt: skip

    def run(*arguments: str) -> Any:
        done = CliRunner().invoke(app, [*arguments, *where, "--json"])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    (node,) = run("node", "list")
    assert (node["id"], node["alive"], node["address"]) == (0, True, broker.addresses["data_node"])
    ranges = run("range", "list")
    assert len(ranges) == node["ranges"]
    assert {one["state"] for one in ranges if one["end"] is None} == {"open"}
    held = run("node", "show", "0")["held"]
    assert held == ranges
    newest = max(one["stream"] for one in ranges)
    shown = run("range", "show", str(newest), "0")
    assert (shown["next_offset"], shown["primary"], shown["replicas"]) == (2, 0, [0])
    assert [one["end"] for one in shown["segments"]] == [2]
    assert run("range", "list", "--stream", str(newest)) == [
        {name: shown[name] for name in ranges[0]}
    ]
    assert run("range", "list", "--node", "7") == []
    with pytest.raises(NotFoundError, match="range list"):
        run("range", "show", str(newest), "5")
    with pytest.raises(NotFoundError, match="node list"):
        run("node", "show", "5")
    plain = CliRunner().invoke(app, ["range", "list", *where])
    assert "primary" in plain.stdout


def test_without_a_cluster_it_says_what_to_give() -> None:
    done = CliRunner().invoke(app, ["node", "list", "--data-dir", "/nowhere"])
    assert isinstance(done.exception, ConfigError)
    assert "--placement-managers" in str(done.exception)
