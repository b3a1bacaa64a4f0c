"""headrace doctor: what is wrong with this machine or this server, and what to do about it.

Each check is a function that gives findings; a finding that is not good names its fix. Nothing is
changed. Exit 1 when something is broken, 0 when it is fine or merely could be better.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import TARGET, connects
from headrace.cli.declare import command, json_option, option
from headrace.cli.output import print_json
from headrace.observability.escaping import escape

if TYPE_CHECKING:
    from headrace.wire.iggy.messages.extensions import PublishingFigures, ShardMap

PORTS = {"iggy": 8090, "quic": 8080, "placement manager": 12378, "data node": 10911, "http": 3000}
SYNCS = 15
SYNC_MS_HIGH = 20.0
FREE_BYTES_LOW = 1 << 30
FILES_LOW = 4096
MEMORY_LOW = 2 << 30
CLOCK_SECONDS_MAX = 2.0
CONTROL_SECONDS = 5.0
PUBLISHERS_SHARE_HIGH = 0.8
STAGED_MS_HIGH = 3_600_000
LOOP_DELAY_MS_HIGH = 250.0


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    text: str
    fix: str = ""


@command("doctor")
@option("--data-dir", default="headrace-data", help="Where the log is, or will be, kept.")
@json_option
@connects
def doctor(data_dir: str, as_json: bool) -> None:
    """Look for what would keep Headrace from working here, and say how to mend it."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        check_python, check_versions, check_java, check_files, check_memory,
        lambda: check_disk(Path(data_dir)), lambda: check_sync(Path(data_dir)), check_server,
        lambda: check_cluster(data_dir), check_pipelines,
    )  # fmt: skip
    findings = [finding for check in checks for finding in check()]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.level is Level.BROKEN for finding in findings):
        raise click.exceptions.Exit(1)


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    signs = {Level.OK: "[green]✓[/]", Level.WARNING: "[yellow]![/]", Level.BROKEN: "[red]✗[/]"}
    console = Console(highlight=False)
    for each in findings:
        told = Text(f" {each.check:<9} {escape(each.text)}")
        console.print(Text.from_markup(signs[each.level]) + told, soft_wrap=True)
        if each.fix:
            console.print(Text(f"            → {escape(each.fix)}"), soft_wrap=True)


def check_python() -> Iterator[Finding]:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding("python", Level.OK, text)


def check_versions() -> Iterator[Finding]:
    from importlib.metadata import PackageNotFoundError, version

    yield Finding("versions", Level.OK, f"headrace {version('headrace')}")
    try:
        spark, arrow = version("pyspark"), version("pyarrow")
    except PackageNotFoundError as error:
        yield Finding(
            "versions", Level.WARNING, f"{error.name} is not installed: no pipelines",
            "pip install 'headrace[spark]'",
        )  # fmt: skip
        return
    known = tuple(map(int, spark.split(".")[:2])) >= (4, 2)
    yield Finding(
        "versions", Level.OK if known else Level.BROKEN, f"pyspark {spark}, pyarrow {arrow}",
        "" if known else "The connector needs Spark 4.2 or newer.",
    )  # fmt: skip


def check_java() -> Iterator[Finding]:
    from headrace.errors import ConfigError
    from headrace.spark.session.java import java_home, java_version

    try:
        home = java_home()
    except ConfigError as error:
        yield Finding("java", Level.WARNING, "no Java for Spark", str(error))
        return
    yield Finding("java", Level.OK, f"Java {java_version(Path(home))} in {home}")


def check_files() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files allowed"
    if soft < FILES_LOW:
        yield Finding(
            "files", Level.WARNING, f"{text}: each connection needs one",
            f"ulimit -n {min(hard, 65536) if hard > 0 else 65536}, in the shell that starts it.",
        )  # fmt: skip
    else:
        yield Finding("files", Level.OK, text)


def check_memory() -> Iterator[Finding]:
    try:
        available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # macOS does not tell
        return
    text = f"{available / 2**30:.1f} GiB free"
    if available < MEMORY_LOW:
        yield Finding(
            "memory", Level.WARNING, f"{text}: a Spark container asks for more",
            "End something, or give pipelines a smaller heap (see docs/pipelines.md).",
        )  # fmt: skip
    else:
        yield Finding("memory", Level.OK, text)


def check_disk(folder: Path) -> Iterator[Finding]:
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK):
        yield Finding(
            "disk", Level.BROKEN, f"{there} cannot be written", "Choose another --data-dir."
        )
        return
    free = shutil.disk_usage(there).free
    text = f"{free / 2**30:.1f} GiB free for {folder}"
    if free < FREE_BYTES_LOW:
        yield Finding("disk", Level.WARNING, text, "Free some, or choose another --data-dir.")
    else:
        yield Finding("disk", Level.OK, text)


def check_sync(folder: Path) -> Iterator[Finding]:
    """An acknowledgement of a `synced` topic waits for one of these."""
    import tempfile
    import time

    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK):
        return  # said already
    times = []
    with tempfile.TemporaryFile(dir=there) as file:
        for number in range(SYNCS):
            os.pwrite(file.fileno(), bytes(4096), 4096 * number)
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    middle_ms = sorted(times)[SYNCS // 2] * 1000
    text = f"{middle_ms:.1f} ms to sync a write: the least that a send waits"
    if middle_ms > SYNC_MS_HIGH:
        yield Finding(
            "sync", Level.WARNING, text,
            "Choose a faster disk, or durability `written` for topics that may lose their end.",
        )  # fmt: skip
    else:
        yield Finding("sync", Level.OK, text)


def check_server() -> Iterator[Finding]:
    """The server of the options if it answers; otherwise whether one could be started here."""
    from headrace.errors import HeadraceError

    address = TARGET.get().address
    try:
        yield from _ask_server(address)
    except HeadraceError as error:
        from headrace.cli.advice import advice

        local = address.startswith(("127.", "localhost:", "[::1]"))
        level = Level.WARNING if local else Level.BROKEN
        yield Finding("server", level, f"{address}: {error}", advice(error))
        if local:
            yield from check_ports()


def _ask_server(address: str) -> Iterator[Finding]:
    import time

    from headrace.cli.connection import with_broker
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy import commands as c
    from headrace.wire.iggy.messages.system import Stats

    async def work(
        client: IggyClient,
    ) -> tuple[float, Stats, PublishingFigures | None, ShardMap | None]:
        started = time.perf_counter()
        await client.ping()
        seconds, hello = time.perf_counter() - started, await client.hello()
        known = () if hello is None else hello.features
        figures = await client.get_publishing() if c.GET_PUBLISHING.name in known else None
        shards = await client.get_shards() if c.GET_SHARDS.name in known else None
        return seconds, await client.get_stats(), figures, shards

    seconds, stats, publishing, shards = with_broker(work)
    yield Finding(
        "server", Level.OK,
        f"{address} answers in {seconds * 1e3:.1f} ms: version {stats.server_version}, "
        f"{stats.streams_count} streams, {stats.clients_count} clients",
    )  # fmt: skip
    now = stats.start_time_us + stats.run_time_us
    skew = now / 1e6 - time.time()
    if abs(skew) > CLOCK_SECONDS_MAX:
        yield Finding(
            "clock", Level.WARNING, f"the server's clock differs from this one by {skew:+.1f} s",
            "Keep both in time (chrony, systemd-timesyncd); message times are the server's.",
        )  # fmt: skip
    else:
        yield Finding("clock", Level.OK, "the server's clock agrees with this one")
    if shards is not None:
        yield from _workers(shards, stats.hostname == platform.node())
    if publishing is not None:
        yield from _staged(publishing)
    if stats.free_disk_space and stats.free_disk_space < FREE_BYTES_LOW:
        yield Finding(
            "server", Level.BROKEN, f"only {stats.free_disk_space / 2**20:.0f} MiB free there",
            "Free space, delete a topic, or lower retention: appends are about to be refused.",
        )  # fmt: skip


def check_cluster(data_dir: str) -> Iterator[Finding]:
    """What the placement managers say is wrong, where `data_dir` tells who they are."""
    from headrace.errors import HeadraceError

    if not Path(data_dir).is_dir():
        return
    from headrace.cli.cluster.cluster_status import look

    try:
        found = look(data_dir, None, "")
    except HeadraceError:
        return  # none was started there, or none runs: the server's check says so
    for problem in found.problems:
        text, _, fix = problem.partition("; ")
        yield Finding("cluster", Level.BROKEN, text, fix or "headrace cluster status tells more.")
    if not found.problems:
        yield Finding("cluster", Level.OK, f"{found.ranges} ranges, replicated as wanted")


def check_pipelines() -> Iterator[Finding]:
    """What the control plane says is wrong with pipelines, where one answers."""
    from headrace.errors import HeadraceError

    try:
        found = _ask_control()
    except HeadraceError:
        return  # a broker needs none, and the server's check tells of what does not answer
    levels = {"critical": Level.BROKEN, "warning": Level.WARNING}
    for problem in found["problems"]:
        if problem["subject"] == "pipeline" and problem["severity"] in levels:
            level = levels[problem["severity"]]
            yield Finding("pipelines", level, problem["title"], problem["next_step"])
    running = [one for one in found["pipelines"] if one["state"] == "RUNNING"]
    if running and all(one["keeps_up"] for one in running):
        yield Finding("pipelines", Level.OK, f"{len(running)} run and keep up")


def _ask_control() -> dict[str, Any]:
    from headrace.cli.control_api import control_api

    api = control_api(os.environ.get("HEADRACE_HTTP"))
    return dict(api.get("/problems", seconds=CONTROL_SECONDS))


def _staged(figures: PublishingFigures) -> Iterator[Finding]:
    """What jobs and queries staged and did not close."""
    share = figures.publishers / max(1, figures.publishers_max)
    text = f"{figures.publishers} publishers of {figures.publishers_max}"
    if share > PUBLISHERS_SHARE_HIGH:
        yield Finding(
            "publish", Level.WARNING, f"{text}: soon nobody can open one",
            "Raise advanced.broker.publishers_max; a query keeps one as long as its checkpoint"
            " counts.",
        )  # fmt: skip
    else:
        yield Finding("publish", Level.OK, text)
    if figures.staged_messages:
        old = figures.staged_oldest_ms > STAGED_MS_HIGH
        size, hours = figures.staged_bytes / 2**20, figures.staged_oldest_ms / 3_600_000
        yield Finding(
            "staged", Level.WARNING if old else Level.OK,
            f"{figures.staged_messages} messages ({size:.0f} MiB) are staged and not published"
            + (f", some for {hours:.1f} h" if old else ""),
            "A job died, or a query is stuck: end it or start it again. They are removed after "
            f"{figures.staged_ms_max / 3_600_000:g} h (advanced.broker.staged_ms_max)."
            if old else "",
        )  # fmt: skip


def _workers(found: ShardMap, is_here: bool) -> Iterator[Finding]:
    """How many lead, against the cores of this machine where they run on it."""
    from headrace.cli.output import counted

    here = sum(one.host == platform.node() for one in found.workers) if is_here else 0
    cores = os.cpu_count() or 1
    text = f"{counted(len(found.workers), 'worker')} for {counted(len(found.shards), 'shard')}"
    if here:
        text += f"; {here} on the {counted(cores, 'core')} of this machine"
    if here > cores:
        yield Finding(
            "workers", Level.WARNING, f"{text}: they wait for each other",
            "Run fewer workers than there are cores.",
        )  # fmt: skip
    else:
        yield Finding("workers", Level.OK, text)
    nobody = [one.shard for one in found.shards if not one.worker]
    if nobody:
        yield Finding(
            "workers", Level.WARNING, f"nobody leads {counted(len(nobody), 'shard')}",
            "It passes in a few seconds; if not, the log of the coordinator says why: "
            "`headrace shard list` names it.",
        )  # fmt: skip
    for one in found.workers:
        if one.loop_delay_ms > LOOP_DELAY_MS_HIGH:
            yield Finding(
                "workers", Level.WARNING,
                f"worker {one.number} was late by {one.loop_delay_ms:.0f} ms in the last minute",
                "It has too much to do: move a shard of it (`headrace shard move`), or give the "
                "machine more cores.",
            )  # fmt: skip


def check_ports() -> Iterator[Finding]:
    """Whether `headrace up` could listen where it does by default."""
    taken = []
    for name, port in PORTS.items():
        kind = socket.SOCK_DGRAM if name == "quic" else socket.SOCK_STREAM
        with socket.socket(socket.AF_INET, kind) as probe:
            if kind is socket.SOCK_STREAM:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                taken.append((name, port))
    if not taken:
        yield Finding("ports", Level.OK, "the usual ports are free")
    for name, port in taken:
        option = name.replace("placement manager", "placement").replace("data node", "node")
        yield Finding(
            "ports", Level.WARNING, f"port {port} ({name}) is taken",
            f"Stop what has it (ss -ltnp), or start with --{option}-port 0.",
        )  # fmt: skip
