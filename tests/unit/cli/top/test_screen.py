"""What `headrace top` draws of a sample, and what it says changed since the one before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from headrace.cli.control_api import PipelineRow
from headrace.cli.top.sample import (
    BrokerNode,
    GroupLag,
    Sample,
    ServerFigures,
    TopicFigures,
    add_rates,
)
from headrace.cli.top.screen import amount, draw, duration, sort_topics


def topic(name: str, messages: int, size: int) -> TopicFigures:
    return TopicFigures(topic=name, partitions=1, messages=messages, bytes=size)


def sample(at: float, *topics: TopicFigures, lag: int = 0) -> Sample:
    server = ServerFigures(
        version="1", host="h", uptime_seconds=90061.0, cpu_percent=12.3, memory_bytes=5_000_000,
        disk_free_bytes=7_000_000_000, disk_total_bytes=1, clients=3, streams=1,
        topics=len(topics), partitions=len(topics), messages=sum(t.messages for t in topics),
        bytes=0, written_bytes=0,
    )  # fmt: skip
    groups = [GroupLag(group="billing", topic="s/a", members=2, lag=lag)]
    return Sample(at, server=server, topics=list(topics), groups=groups)


def shown(made: Sample, *, sort: str = "rate", paused: bool = False, height: int = 40) -> list[str]:
    console = Console(width=120, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(made, sort=sort, paused=paused, height=height))
    return captured.get().splitlines()


def test_rates_are_changes_per_second_and_never_below_zero() -> None:
    before = sample(10.0, topic("s/a", 100, 1000), topic("s/b", 50, 500), lag=5)
    add_rates(before, None)
    assert before.topics[0].messages_per_second is None
    assert before.groups[0].lag_per_second is None
    now = sample(12.0, topic("s/a", 300, 5000), topic("s/b", 10, 100), topic("s/c", 1, 1), lag=25)
    add_rates(now, before)
    rates = [row.messages_per_second for row in now.topics]
    assert rates == [100.0, 0.0, None], "what retention took is no rate; what is new has none yet"
    assert now.topics[0].bytes_per_second == 2000.0
    assert now.groups[0].lag_per_second == 10.0
    assert now.server.messages_per_second == pytest.approx(80.5)


def test_the_screen_shows_what_needs_attention_first() -> None:
    before = sample(10.0, topic("s/a", 100, 1000), lag=5)
    add_rates(before, None)
    now = sample(12.0, topic("s/a", 300, 5000), lag=25)
    add_rates(now, before)
    now.pipelines = [
        PipelineRow("quiet", "RUNNING", lag=0, window="a1"),
        PipelineRow("shop", "FAILED", lag=7_000, rows_bad=3, restarts=2),
    ]
    now.nodes = [
        BrokerNode(name="one", address="h:1", role="leader", status="healthy"),
        BrokerNode(name="two", address="h:2", role="follower", status="healthy"),
    ]
    lines = shown(now, paused=True)
    text = "\n".join(lines)
    assert "PAUSED" in text
    assert "up 1d 1h" in text
    rows = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert rows["shop"] == ["shop", "FAILED", "-", "7.0k", "-", "-", "3", "2"]
    assert rows["billing"] == ["billing", "s/a", "2", "25", "+10", "grows"]
    assert rows["s/a"] == ["s/a", "1", "300", "5.0kB", "100", "2.0k"]
    assert rows["two"][-2:] == ["follower", "healthy"]
    order = [text.index(word) for word in ("shop", "quiet", "billing", "s/a  ", "one", "sort:")]
    assert order == sorted(order)


def test_more_topics_than_lines_are_counted() -> None:
    now = sample(1.0, *(topic(f"s/t{n:02}", n, n) for n in range(50)))
    add_rates(now, None)
    lines = shown(now, height=24)
    assert len(lines) <= 24
    assert any(line.startswith("and ") and line.rstrip().endswith("more") for line in lines)
    assert any("pipelines: nobody" in line for line in shown_with_error(now))


def shown_with_error(made: Sample) -> list[str]:
    made.pipelines_error = "nobody answers"
    return shown(made)


def test_topics_are_sorted_as_asked() -> None:
    rows = [
        replace(topic("b", 1, 30), messages_per_second=5.0),
        topic("a", 2, 10),
        replace(topic("c", 3, 20), messages_per_second=9.0),
    ]
    orders = {"rate": "cba", "size": "bca", "name": "abc"}
    for sort, order in orders.items():
        assert "".join(row.topic for row in sort_topics(rows, sort)) == order


def test_numbers_are_short() -> None:
    assert [amount(n) for n in (None, 0, 999, 1_500, 2_000_000, 3.2e9, 4e12)] == [
        "-", "0", "999", "1.5k", "2.0M", "3.2G", "4.0T"
    ]  # fmt: skip
    assert [duration(n) for n in (5, 65, 3_700, 90_000)] == ["5s", "1m 5s", "1h 1m", "1d 1h"]


def test_programs_get_every_figure_by_its_name() -> None:
    made = sample(1.0, topic("s/a", 100, 1000), lag=5)
    made.pipelines = [PipelineRow.from_json({"name": "old", "state": "UNREADABLE", "more": 1})]
    found = made.to_json()
    assert list(found) == ["server", "cluster", "topics", "groups", "pipelines", "pipelines_error"]
    assert found["topics"] == [
        {"topic": "s/a", "partitions": 1, "messages": 100, "bytes": 1000,
         "messages_per_second": None, "bytes_per_second": None}
    ]  # fmt: skip
    assert found["groups"][0]["lag_per_second"] is None
    assert found["server"]["written_bytes_per_second"] is None
    assert (found["pipelines"][0]["state"], found["pipelines"][0]["lag"]) == ("UNREADABLE", None)
    made.pipelines = None
    assert made.to_json()["pipelines"] is None
