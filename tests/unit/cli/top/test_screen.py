"""What `headrace top` draws of a look, and what it says changed since the one before."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from headrace.cli.top.sample import Look, add_rates
from headrace.cli.top.screen import amount, draw, duration, sort_topics


def topic(name: str, messages: int, size: int) -> dict[str, Any]:
    return {"topic": name, "partitions": 1, "messages": messages, "bytes": size}


def look(at: float, *topics: dict[str, Any], lag: int = 0) -> Look:
    server = {
        "version": "1", "host": "h", "uptime_seconds": 90061.0, "cpu_percent": 12.3,
        "memory_bytes": 5_000_000, "disk_free_bytes": 7_000_000_000, "disk_total_bytes": 1,
        "clients": 3, "messages": sum(t["messages"] for t in topics), "bytes": 0,
        "written_bytes": 0,
    }  # fmt: skip
    groups = [{"group": "billing", "topic": "s/a", "members": 2, "lag": lag}]
    return Look(at, server=server, topics=list(topics), groups=groups)


def pipeline(name: str, state: str, **more: Any) -> dict[str, Any]:
    keys = ("rows", "rows_per_second", "lag", "window", "rows_late", "rows_bad", "restarts")
    return {"name": name, "state": state, **dict.fromkeys(keys), **more}


def shown(made: Look, *, sort: str = "rate", paused: bool = False, height: int = 40) -> list[str]:
    console = Console(width=120, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(made, sort=sort, paused=paused, height=height))
    return captured.get().splitlines()


def test_rates_are_changes_per_second_and_never_below_zero() -> None:
    before = look(10.0, topic("s/a", 100, 1000), topic("s/b", 50, 500), lag=5)
    add_rates(before, None)
    assert before.topics[0]["messages_per_second"] is None
    assert before.groups[0]["lag_per_second"] is None
    now = look(12.0, topic("s/a", 300, 5000), topic("s/b", 10, 100), topic("s/c", 1, 1), lag=25)
    add_rates(now, before)
    rates = [row["messages_per_second"] for row in now.topics]
    assert rates == [100.0, 0.0, None], "what retention took is no rate; what is new has none yet"
    assert now.topics[0]["bytes_per_second"] == 2000.0
    assert now.groups[0]["lag_per_second"] == 10.0
    assert now.server["messages_per_second"] == pytest.approx(80.5)


def test_the_screen_shows_what_needs_attention_first() -> None:
    before = look(10.0, topic("s/a", 100, 1000), lag=5)
    add_rates(before, None)
    now = look(12.0, topic("s/a", 300, 5000), lag=25)
    add_rates(now, before)
    now.pipelines = [
        pipeline("quiet", "RUNNING", lag=0, window="a1"),
        pipeline("shop", "FAILED", lag=7_000, rows_bad=3, restarts=2),
    ]
    now.nodes = [
        {"name": "one", "address": "h:1", "role": "leader", "status": "healthy"},
        {"name": "two", "address": "h:2", "role": "follower", "status": "healthy"},
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
    now = look(1.0, *(topic(f"s/t{n:02}", n, n) for n in range(50)))
    add_rates(now, None)
    lines = shown(now, height=24)
    assert len(lines) <= 24
    assert any(line.startswith("and ") and line.rstrip().endswith("more") for line in lines)
    assert any("pipelines: nobody" in line for line in shown_with_error(now))


def shown_with_error(made: Look) -> list[str]:
    made.pipelines_error = "nobody answers"
    return shown(made)


def test_topics_are_sorted_as_asked() -> None:
    rows = [
        {**topic("b", 1, 30), "messages_per_second": 5.0},
        {**topic("a", 2, 10), "messages_per_second": None},
        {**topic("c", 3, 20), "messages_per_second": 9.0},
    ]
    orders = {"rate": "cba", "size": "bca", "name": "abc"}
    for sort, order in orders.items():
        assert "".join(row["topic"] for row in sort_topics(rows, sort)) == order


def test_numbers_are_short() -> None:
    assert [amount(n) for n in (None, 0, 999, 1_500, 2_000_000, 3.2e9, 4e12)] == [
        "-", "0", "999", "1.5k", "2.0M", "3.2G", "4.0T"
    ]  # fmt: skip
    assert [duration(n) for n in (5, 65, 3_700, 90_000)] == ["5s", "1m 5s", "1h 1m", "1d 1h"]
