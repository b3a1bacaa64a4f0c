"""The live screen of `headrace top`: it takes samples, draws them, and listens to keys.

Tables come in the order of what needs attention.
"""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live

from headrace.cli.top.sample import (
    BrokerNode,
    GroupLag,
    ListPipelines,
    Sample,
    TopicFigures,
    take_sample,
)
from headrace.client.iggy import IggyClient
from headrace.observability.escaping import escape

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

    from headrace.cli.control_api import PipelineRow

SORTS = ("rate", "lag", "size", "name")
KEYS = "q quit   p pause   s sort   r refresh"


def draw(sample: Sample, *, sort: str, paused: bool, height: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(
        ("headrace top  ", "bold"),
        _head(sample),
        ("  PAUSED" if paused else "", "bold reverse"),
    )
    pipelines = sample.pipelines or []
    fixed = 8 + len(sample.nodes[:5]) + min(10, len(pipelines)) + min(10, len(sample.groups))
    room = max(3, height - fixed)
    parts: list[RenderableType] = [head, Text()]
    if pipelines:
        parts.append(_pipelines(pipelines[:10]))
    elif sample.pipelines_error:
        parts.append(Text(f"pipelines: {escape(str(sample.pipelines_error))}", style="dim"))
    if sample.groups:
        parts.append(_groups(sample.groups, sort))
    parts.append(_topics(sample.topics, sort, room))
    if len(sample.nodes) > 1:
        parts.append(_nodes(sample.nodes[:5]))
    parts.append(Text(f"sort: {sort}   {KEYS}", style="dim"))
    return Group(*parts)


def _head(sample: Sample) -> str:
    server = sample.server
    rate, size = server.messages_per_second, server.bytes_per_second
    return (
        f"{server.host} {server.version}, up {duration(server.uptime_seconds)}, "
        f"cpu {server.cpu_percent:.0f}%, memory {amount(server.memory_bytes)}B, "
        f"disk {amount(server.disk_free_bytes)}B free, {server.clients} clients, "
        f"{amount(rate)} messages/s, {amount(size)}B/s"
    )


def _table(title: str, columns: Sequence[str]) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for position, column in enumerate(columns):
        table.add_column(
            column, justify="right" if position else "left", no_wrap=True, header_style="dim"
        )
    return table


def _pipelines(rows: list[PipelineRow]) -> Table:
    table = _table(
        "pipelines", ("name", "state", "rows/s", "lag", "window", "late", "bad", "restarts")
    )
    for row in sorted(rows, key=lambda one: (-(one.lag or 0), one.name)):
        failed = row.state in ("FAILED", "UNREADABLE")
        table.add_row(
            _shown(row.name),
            row.state,
            amount(row.rows_per_second),
            amount(row.lag),
            row.window or "-",
            amount(row.rows_late),
            amount(row.rows_bad),
            str(row.restarts or 0),
            style="bold red" if failed else "",
        )
    return table


def _groups(rows: list[GroupLag], sort: str) -> Table:
    table = _table("consumer groups", ("group", "topic", "members", "lag", "lag/s"))
    ordered = sorted(rows, key=lambda one: one.group if sort == "name" else one.topic)
    if sort != "name":
        ordered = sorted(ordered, key=lambda one: one.lag, reverse=True)
    for row in ordered[:10]:
        change = row.lag_per_second
        grows = change is not None and change > 0 and row.lag > 0
        table.add_row(
            _shown(row.group),
            _shown(row.topic),
            str(row.members),
            amount(row.lag),
            "-" if change is None else f"{change:+,.0f}{' grows' if grows else ''}",
            style="yellow" if grows else "",
        )
    return table


def sort_topics(rows: list[TopicFigures], sort: str) -> list[TopicFigures]:
    if sort == "name":
        return sorted(rows, key=lambda one: one.topic)
    if sort == "size":
        return sorted(rows, key=lambda one: (-one.bytes, one.topic))
    return sorted(rows, key=lambda one: (-(one.messages_per_second or 0), one.topic))


def _topics(rows: list[TopicFigures], sort: str, room: int) -> Table:
    columns = ("topic", "partitions", "messages", "size", "messages/s", "bytes/s")
    table = _table("topics", columns)
    ordered = sort_topics(rows, sort)
    for row in ordered[:room]:
        table.add_row(
            _shown(row.topic),
            str(row.partitions),
            amount(row.messages),
            f"{amount(row.bytes)}B",
            amount(row.messages_per_second),
            amount(row.bytes_per_second),
        )
    if len(ordered) > room:
        table.add_row(f"and {len(ordered) - room} more", *[""] * (len(columns) - 1), style="dim")
    return table


def _nodes(rows: list[BrokerNode]) -> Table:
    table = _table("brokers", ("name", "address", "role", "status"))
    for row in rows:
        table.add_row(row.name, row.address, row.role, row.status)
    return table


def _shown(name: object) -> Text:
    """As text: a name in brackets would be taken for a style."""
    from rich.text import Text

    return Text(escape(str(name)))


def amount(value: float | None) -> str:
    """A number in four characters or so."""
    if value is None:
        return "-"
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def duration(seconds: float) -> str:
    whole = int(seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if whole >= size:
            rest, smaller = {"d": (3600, "h"), "h": (60, "m"), "m": (1, "s")}[unit]
            return f"{whole // size}{unit} {whole % size // rest}{smaller}"
    return f"{whole}s"


class Screen:
    """What a person sees and does while `headrace top` runs: sorted, paused, refreshed, left."""

    def __init__(self, sort: str, interval: float) -> None:
        self._sort = sort
        self._interval = interval
        self._paused = False
        self._quit = False
        self._sample_now = asyncio.Event()
        self._draw_now = asyncio.Event()

    async def run(
        self, client: IggyClient, list_pipelines: ListPipelines | None, count: int
    ) -> None:
        console = Console()
        with (
            _keys(self._on_keys),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            found: Sample | None = None
            samples = 0
            while not self._quit and not (count and samples >= count):
                if found is None or not self._paused:
                    found = await take_sample(client, list_pipelines, found)
                    samples += 1
                await self._show(live, found, console.size.height)

    async def _show(self, live: Live, found: Sample, height: int) -> None:
        """Until the next sample is due; a key draws at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._interval
        self._sample_now.clear()
        while not self._quit and not self._sample_now.is_set() and loop.time() < until:
            self._draw_now.clear()
            live.update(
                draw(found, sort=self._sort, paused=self._paused, height=height), refresh=True
            )
            try:
                async with asyncio.timeout_at(until):
                    await self._draw_now.wait()
            except TimeoutError:
                return

    def _on_keys(self, keys: str) -> None:
        for key in keys:
            match key:
                case "q" | "\x03" | "\x04":
                    self._quit = True
                case "p" | " ":
                    self._paused = not self._paused
                case "s":
                    self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
                case "r":
                    self._sample_now.set()
        self._draw_now.set()


@contextmanager
def _keys(on_keys: Callable[[str], None]) -> Iterator[None]:
    """Keys as they are pressed, without echo; the terminal is as before afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        on_keys(data.decode("ascii", "ignore") if data else "q")

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
