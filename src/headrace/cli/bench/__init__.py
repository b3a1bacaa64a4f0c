"""headrace bench: how much a broker takes and gives, with a report to keep and to compare.

A mode, sizes and a duration come in; figures go out, as a table, JSON, or a report of two files.
The command owns the topic that it makes, `load.py` owns the connections that send and poll,
`figures.py` counts, `report.py` draws.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from headrace.cli.connection import connects, log_in
from headrace.cli.declare import argument, command, json_option, option, split_topic
from headrace.cli.output import print_json, print_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.cli.bench.load import Load, LoadOutcome
    from headrace.client.iggy import IggyClient

SECONDS_MAX = 3600.0
BATCH_BYTES_MAX = 16 << 20
_TOPIC = "bench/bench"


@command("bench")
@argument(
    "mode",
    type=click.Choice(["produce", "consume", "both"]),
    default="both",
    help="What the connections do.",
)
@option(
    "--topic",
    default=_TOPIC,
    metavar="STREAM/TOPIC",
    help="Made if it is not there, then deleted again.",
)
@option("--size", type=click.IntRange(min=8), default=1000, help="Bytes of a message.")
@option(
    "--batch", type=click.IntRange(min=1, max=100_000), default=1000, help="Messages of a request."
)
@option("--connections", type=click.IntRange(min=1, max=256), default=4, help="Of each side.")
@option(
    "--partitions", type=click.IntRange(min=1, max=1000), default=4, help="Of a topic that is made."
)
@option(
    "--duration", type=click.FloatRange(min=0.1, max=SECONDS_MAX), default=10.0, help="Seconds."
)
@option(
    "--warmup",
    type=click.FloatRange(min=0, max=60),
    default=1.0,
    help="Seconds before anything counts.",
)
@option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    help="Messages per second in all; 0 = maximum.",
)
@option(
    "--ack",
    type=click.Choice(["default", "replicated", "persisted"]),
    default="default",
    help="What an acknowledged message of a made topic has reached.",
)
@option("--keep", is_flag=True, help="Do not delete a topic made here.")
@option("--report", default="", metavar="PATH", help="Write PATH.json and PATH.html.")
@option("--compare", default="", metavar="FILE", help="A PATH.json of an earlier run.")
@json_option
@connects
def bench(
    mode: Literal["produce", "consume", "both"],
    topic: str,
    size: int,
    batch: int,
    connections: int,
    partitions: int,
    duration: float,
    warmup: float,
    rate: float,
    ack: Literal["default", "replicated", "persisted"],
    keep: bool,
    report: str,
    compare: str,
    as_json: bool,
) -> None:
    """Load a broker and measure: messages per second, latency percentiles."""
    from headrace.cli.bench.figures import compare as compare_reports
    from headrace.cli.bench.figures import differing
    from headrace.cli.bench.load import Load

    stream, name = split_topic(topic)
    if size * batch > BATCH_BYTES_MAX:
        raise click.BadParameter(
            f"a batch of {size * batch} bytes is more than {BATCH_BYTES_MAX}; lower --size or "
            "--batch"
        )
    before = _load_report(compare) if compare else None
    load = Load(
        mode=mode, stream=stream, topic=name, size=size, batch=batch, connections=connections,
        partitions=partitions, seconds=duration, warmup_seconds=warmup, rate=rate,
    )  # fmt: skip
    made = _measure(load, ack=ack, keep=keep)
    changes = [] if before is None else compare_reports(made, before)
    if changes:
        made["compared"] = {
            each.name: {"before": each.before, "now": each.now, "percent": round(each.percent, 2)}
            for each in changes
        }
    if report:
        _save(report, made, before, changes)
    if as_json:
        print_json(made)
    else:
        _print(made)
        if changes:
            rows = [
                {"figure": c.name, "before": c.before, "now": c.now, "change": f"{c.percent:+.1f}%"}
                for c in changes
            ]
            print_rows(rows, ("figure", "before", "now", "change"), as_json=False)
    if before is not None and (names := differing(made, before)):
        note(f"the runs differ in {', '.join(names)}")
    for error in made["errors"]:
        note(f"a connection failed: {error}")
    if made["errors"]:
        raise click.exceptions.Exit(1)


def _measure(load: Load, *, ack: str, keep: bool) -> dict[str, Any]:
    from headrace.runtime.system import run

    return run(_measured(load, ack=ack, keep=keep))


async def _measured(load: Load, *, ack: str, keep: bool) -> dict[str, Any]:
    from headrace.cli.bench.load import LoadRun

    async with await _connect() as client:
        server = (await client.get_stats()).server_version
        load, cleaners = await _prepare(client, load, ack)
        try:
            with _progress(load) as progress:
                outcome = await LoadRun(load, _connect, progress).run()
        finally:
            if not keep:
                for clean in cleaners:
                    await clean()
    return _report(load, outcome, server=server, ack=ack)


async def _connect(*, numbered: bool = False) -> IggyClient:
    from headrace.wire.iggy.vsr.client import Conversation

    return await log_in(Conversation(os.urandom(16)) if numbered else None)


async def _prepare(
    client: IggyClient, load: Load, ack: str
) -> tuple[Load, list[Callable[[], Any]]]:
    """The load with the partitions that the topic has, and what removes what was made."""
    from dataclasses import replace

    from headrace.errors import NotFoundError

    details = await client.get_topic(load.stream, load.topic)
    if details is not None:
        return replace(load, partitions=max(1, details.topic.partitions_count)), []
    if not load.produces:
        raise NotFoundError(f"there is no topic {load.stream}/{load.topic} to consume")
    cleaners: list[Callable[[], Any]] = []
    if await client.get_stream(load.stream) is None:
        await client.create_stream(load.stream)
        cleaners.append(lambda: client.delete_stream(load.stream))
    if ack == "default":
        await client.create_topic(load.stream, load.topic, partitions_count=load.partitions)
    else:
        await _create_with_durability(load, ack)
    cleaners.insert(0, lambda: client.delete_topic(load.stream, load.topic))
    return load, cleaners


async def _create_with_durability(load: Load, ack: str) -> None:
    """Only dialect C has a topic's durability among its options."""
    from headrace.wire.iggy import commands as c
    from headrace.wire.iggy.messages.topics import Compression, CreateTopic
    from headrace.wire.iggy.user_headers import UserHeader

    async with await _connect(numbered=True) as numbered:
        request = CreateTopic(
            load.stream, load.partitions, Compression.NONE, 0, 0, 0, load.topic,
            options=(UserHeader.of("durability", ack),),
        )  # fmt: skip
        await numbered.call(c.CREATE_TOPIC, request)


@contextmanager
def _progress(load: Load) -> Iterator[Callable[[float, int], None]]:
    if not sys.stderr.isatty():
        yield lambda _share, _messages: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn(load.mode),
        BarColumn(),
        TextColumn("{task.fields[messages]:,} messages"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(load.mode, total=1.0, messages=0)
        yield lambda share, messages: progress.update(task, completed=share, messages=messages)


def _report(load: Load, outcome: LoadOutcome, *, server: str, ack: str) -> dict[str, Any]:
    import platform
    from dataclasses import asdict
    from datetime import UTC, datetime
    from importlib.metadata import version

    from headrace.cli.bench.report import VERSION

    made: dict[str, Any] = {
        "report": VERSION,
        "name": f"headrace bench {load.mode}: {load.batch} x {load.size} B",
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": version("headrace"),
        "server": server,
        "machine": {
            "cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "python": platform.python_version(),
        },
        "settings": {**asdict(load), "ack": ack},
        "errors": outcome.errors,
    }
    if outcome.produce is not None:
        made["produce"] = outcome.produce.to_json()
    if outcome.consume is not None:
        made["consume"] = outcome.consume.to_json()
    if outcome.end_to_end.count:
        made["end_to_end"] = {
            "latency_ms": outcome.end_to_end.to_json(),
            "latency_curve": outcome.end_to_end.curve(),
        }
    return made


def _load_report(path: str) -> dict[str, Any]:
    from headrace.cli.bench.report import VERSION
    from headrace.errors import ConfigError

    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if not isinstance(found, dict) or found.get("report") != VERSION:
        raise ConfigError(f"{path} is not a report of this version of headrace bench")
    return found


def _save(
    path: str, report: dict[str, Any], before: dict[str, Any] | None, changes: list[Any]
) -> None:
    from headrace.cli.bench.report import to_html
    from headrace.errors import ConfigError

    base = path.removesuffix(".json").removesuffix(".html")
    try:
        Path(base).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{base}.json").write_text(json.dumps(report, indent=2) + "\n")
        Path(f"{base}.html").write_text(to_html(report, before, changes), "utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {base}: {error.strerror}") from error
    note(f"wrote {base}.json and {base}.html")


def _print(report: dict[str, Any]) -> None:
    rows = []
    for side, title in (("produce", "send"), ("consume", "poll"), ("end_to_end", "end to end")):
        if side in report:
            figures = report[side]
            rate = figures.get("bytes_per_second")
            rows.append(
                {
                    "what": title,
                    "messages": figures.get("messages"),
                    "per_second": figures.get("messages_per_second"),
                    "MB/s": None if rate is None else rate / 1e6,
                    **{
                        f"{name}_ms": f"{figures['latency_ms'][name]:.2f}"
                        for name in ("p50", "p95", "p99", "p99.9", "max")
                    },
                }
            )
    columns = ("what", "messages", "per_second", "MB/s", "p50_ms", "p95_ms", "p99_ms", "p99.9_ms")
    print_rows(rows, (*columns, "max_ms"), as_json=False)
