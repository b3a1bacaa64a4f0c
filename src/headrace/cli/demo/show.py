"""The demonstration, step by step. Everything it starts it also ends, by process id."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.cli.control_api import Api
from headrace.cli.demo.check import Verdict, check, expected
from headrace.cli.pipeline.submission import read_package
from headrace.client.sync import SyncIggyClient
from headrace.errors import ConfigError, HeadraceError, UnavailableError
from headrace.net.addresses import parse_address
from headrace.pipeline.controller.views import ApplicationView
from headrace.wire.iggy.primitives import Strategy

IGGY_VERSION = "0.8.0"
USER = PASSWORD = "iggy"
STREAM = "shop"
PIPELINE = "shop"
SEED = 7
PARTITIONS = 2
START_SECONDS = 60.0
LAG_SECONDS = 10.0
STALL_SECONDS = 90.0  # no progress at all for this long: give up and show the log
KILL_AT = 0.4  # of the orders processed
TICK_SECONDS = 0.25
SETTLE_SECONDS = 2.0
POLL_MESSAGES = 5_000
HERE = Path(__file__).parent


@dataclass(slots=True)
class Times:
    """The story of the kill, in seconds since the kill."""

    killed_at: float = 0.0
    killed_at_ms: int = 0
    detected: float | None = None
    first_batch: float | None = None
    rows_before: int = 0


@dataclass(slots=True)
class Show:
    events: int
    rate: int
    keep: bool
    data_dir: str
    console: Console = field(default_factory=lambda: Console(highlight=False))
    _exit: ExitStack = field(default_factory=ExitStack)
    _addresses: dict[str, str] = field(default_factory=dict)
    _sent: int = 0
    _closed: bool = False
    _producer_failed: str = ""
    _folder: str = ""
    _producer: subprocess.Popen[str] | None = None

    def run(self) -> bool:
        # However it is asked to end, it ends what it started.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        with self._exit:
            try:
                return self._run()
            except KeyboardInterrupt:
                return False
            except HeadraceError as error:
                self.console.print(f"[red]the demonstration failed:[/red] {error}")
                self._show_logs()
                return False

    def _run(self) -> bool:
        client_python = find_iggy_client(self.console)
        self._step("starting log, broker and controller (headrace up --dev)")
        self._start_server()
        self._step(f"creating {STREAM}/orders ({PARTITIONS} partitions) and {STREAM}/revenue")
        self._create_topics()
        api = Api(self._addresses["http"], USER, PASSWORD)
        self._step("handing the pipeline to the controller, which starts Spark")
        api.post("/pipelines", read_package(HERE / "pipeline" / "shop.py"))
        self._step(
            f"apache-iggy {IGGY_VERSION} from PyPI sends {self.events:,} orders at {self.rate:,}/s"
        )
        self._start_producer(client_python)
        self._wait_for_spark(api)
        times = self._watch(api)
        if not self.console.is_terminal:
            self.console.print()  # the last picture ends without a line end when it goes to a file
        results = self._collect_results()
        verdict = check(self._poll("orders"), results, self._late(api))
        self._tell(times, verdict)
        if self.keep:
            self._wait_for_person()
        return verdict.holds

    # Starting

    def _start_server(self) -> None:
        folder = self.data_dir or tempfile.mkdtemp(prefix="headrace-demo-")
        if not self.data_dir and not self.keep:
            self._exit.callback(shutil.rmtree, folder, ignore_errors=True)
        Path(folder).mkdir(parents=True, exist_ok=True)
        ready = Path(folder) / "demo-ready.json"
        ready.unlink(missing_ok=True)
        log = open(Path(folder) / "server.log", "ab")  # noqa: SIM115 - closed by the exit stack
        self._exit.callback(log.close)
        arguments = [sys.executable, "-m", "headrace.cli.main", "up", "--dev"]
        arguments += ["--data-dir", folder, "--ready-file", str(ready)]
        ports = ("iggy", "quic", "placement", "node")
        arguments += [part for name in ports for part in (f"--{name}-port", "0")]
        arguments += ["--http-port", "0"]
        server = subprocess.Popen(arguments, stdout=log, stderr=log, start_new_session=True)
        self._exit.callback(self._stop_server, server)
        self._folder = folder
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise UnavailableError("the server did not start; its log follows")
            time.sleep(0.05)
        self._addresses = json.loads(ready.read_text())

    def _stop_server(self, server: subprocess.Popen[bytes]) -> None:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def _iggy(self) -> SyncIggyClient:
        host, port = parse_address(self._addresses["iggy"])
        return SyncIggyClient(host, port, username=USER, password=PASSWORD)

    def _create_topics(self) -> None:
        with self._iggy() as iggy:
            iggy.run(lambda c: c.create_stream(STREAM))
            iggy.run(lambda c: c.create_topic(STREAM, "orders", partitions_count=PARTITIONS))
            iggy.run(lambda c: c.create_topic(STREAM, "revenue", partitions_count=1))

    def _start_producer(self, python: Path) -> None:
        arguments = [str(python), str(HERE / "producer.py"), self._addresses["iggy"]]
        arguments += [USER, PASSWORD, STREAM, "orders"]
        arguments += [str(self.events), str(self.rate), str(SEED)]
        producer = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._producer = producer

        def end() -> None:
            if producer.poll() is None:
                producer.kill()
            producer.wait()
            reader.join(5)
            assert producer.stdin is not None
            with suppress(BrokenPipeError):
                producer.stdin.close()

        def read() -> None:
            assert producer.stdout is not None
            assert producer.stderr is not None
            for line in producer.stdout:
                report = json.loads(line)
                self._sent = report["sent"]
                self._closed = report.get("closed", False)
            errors = producer.stderr.read()
            if producer.wait() != 0:
                self._producer_failed = errors[-2000:]
            producer.stdout.close()
            producer.stderr.close()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self._exit.callback(end)

    # Watching

    def _wait_for_spark(self, api: Api) -> None:
        """Until the first orders went through; then the producer may go on."""
        deadline = time.monotonic() + STALL_SECONDS
        with self.console.status("Spark starts and runs its first batch") as status:
            while not (view := api.application(PIPELINE)[0]).rows:
                status.update(f"Spark starts and runs its first batch ({view.state.lower()})")
                self._check(view)
                if time.monotonic() > deadline:
                    raise UnavailableError(f"no batch within {STALL_SECONDS:.0f} s")
                time.sleep(TICK_SECONDS)
        self._let_producer_go_on()

    def _let_producer_go_on(self) -> None:
        assert self._producer is not None
        assert self._producer.stdin is not None
        with suppress(BrokenPipeError):  # it ended; `_check` tells why
            self._producer.stdin.write("go on\n")
            self._producer.stdin.flush()

    def _check(self, view: ApplicationView) -> None:
        if self._producer_failed:
            raise UnavailableError(f"the Iggy client failed: {self._producer_failed}")
        if view.state == "FAILED":
            raise UnavailableError(f"the pipeline failed: {view.last_error}")

    def _watch(self, api: Api) -> Times:
        times = Times()
        moved = time.monotonic()
        seen = (-1, -1, "")
        wanted = 0
        complete = 0.0
        with Live(console=self.console, refresh_per_second=4, transient=False) as live:
            while True:
                view, answer = api.application(PIPELINE)
                self._follow_kill(view, answer["events"], times)
                live.update(self._picture(view, times))
                self._check(view)
                if self._closed and times.first_batch is not None:
                    wanted = wanted or self._expected_results()
                    if self._results_count() >= wanted:
                        complete = complete or time.monotonic()
                        # How far it read is told a moment after the results are there.
                        if not view.lag or time.monotonic() - complete > LAG_SECONDS:
                            return times
                now = (self._sent, view.rows, view.state)
                if now != seen:
                    seen, moved = now, time.monotonic()
                elif time.monotonic() - moved > STALL_SECONDS:
                    raise UnavailableError(f"nothing moved for {STALL_SECONDS:.0f} s")
                time.sleep(TICK_SECONDS)

    def _follow_kill(
        self, view: ApplicationView, events: list[dict[str, Any]], times: Times
    ) -> None:
        rows = view.rows
        running = [one.pid for one in view.containers if one.state == "ACTIVE" and one.pid]
        if not times.killed_at:
            if rows >= KILL_AT * self.events and running:
                times.rows_before, times.killed_at = rows, time.monotonic()
                times.killed_at_ms = time.time_ns() // 1_000_000
                os.kill(running[0], signal.SIGKILL)
                self._let_producer_go_on()
            return
        since = time.monotonic() - times.killed_at
        if times.detected is None:
            times.detected = _noticed(events, times.killed_at_ms)
        if times.detected is not None and times.first_batch is None and rows > times.rows_before:
            times.first_batch = since

    def _picture(self, view: ApplicationView, times: Times) -> Table:
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="dim", min_width=11)
        table.add_column()
        table.add_row("sent", f"{self._sent:,} of {self.events:,} orders")
        table.add_row(
            "processed",
            f"{view.rows:,} rows   {view.rows_per_second:,.0f} rows/s",
        )
        table.add_row("lag", f"{view.lag:,} messages")
        table.add_row("window", view.window or "-")
        table.add_row("pipeline", f"{view.state}   restarts {view.restarts}")
        if times.killed_at:
            table.add_row("kill -9", _story(times))
        return table

    # Checking

    def _poll(self, topic: str) -> Iterator[bytes]:
        with self._iggy() as iggy:
            details = iggy.get_topic(STREAM, topic)
            assert details is not None
            for partition in details.partitions:
                offset = 0
                while True:
                    messages = iggy.poll(
                        STREAM, topic, partition=partition.id,
                        strategy=Strategy.offset(offset), count=POLL_MESSAGES,
                    ).messages()  # fmt: skip
                    if not messages:
                        break
                    yield from (message.payload for message in messages)
                    offset = messages[-1].offset + 1

    def _results_count(self) -> int:
        with self._iggy() as iggy:
            details = iggy.get_topic(STREAM, "revenue")
            return details.topic.messages_count if details else 0

    def _expected_results(self) -> int:
        return len(expected(self._poll("orders")))

    def _collect_results(self) -> list[bytes]:
        time.sleep(SETTLE_SECONDS)  # a duplicate published after the last result counts too
        return list(self._poll("revenue"))

    def _late(self, api: Api) -> int:
        return int(api.get(f"/pipelines/{PIPELINE}")["rows_late"] or 0)

    # Telling

    def _step(self, text: str) -> None:
        self.console.print(f"[bold cyan]▸[/bold cyan] {text}")

    def _tell(self, times: Times, verdict: Verdict) -> None:
        print_ = self.console.print
        mark = "[green]✓[/green]" if verdict.holds else "[red]✗[/red]"
        print_(
            f"{mark} {verdict.windows} results checked against a plain computation: [bold]"
            f"lost {verdict.lost} · duplicated {verdict.duplicated} · late {verdict.late}[/bold]"
        )
        print_(f"  pipeline   {HERE / 'pipeline' / 'shop.py'}")
        print_(
            f"  dashboard  http://{self._addresses['http']}/  (user {USER}, password {PASSWORD})"
        )
        print_("  try next   [bold]headrace up --dev[/bold]")
        print_("             [bold]headrace consume shop/revenue --follow[/bold]")
        print_("             [bold]headrace pipeline run your_pipeline.py[/bold]")

    def _wait_for_person(self) -> None:
        address, http = self._addresses["iggy"], self._addresses["http"]
        self.console.print(f"left running: --address {address} --http {http}; Ctrl-C ends it")
        try:
            signal.pause()
        except KeyboardInterrupt:
            return

    def _show_logs(self) -> None:
        if not self._folder:
            return
        folder = Path(self._folder)
        for path in [folder / "server.log", *folder.glob("applications/*/logs/*")]:
            if path.is_file():
                tail = path.read_text(errors="replace").splitlines()[-40:]
                self.console.print(f"\n--- {path.name}", *tail, sep="\n", markup=False)


def _noticed(events: list[dict[str, Any]], killed_at_ms: int) -> float | None:
    """Seconds from the kill to the moment the controller knew of it, by its own event."""
    ends = [e["time_ms"] for e in events if e["type"] == "StopContainer"]
    return next(((at - killed_at_ms) / 1000 for at in ends if at >= killed_at_ms), None)


def _story(times: Times) -> str:
    detected = "…" if times.detected is None else f"{times.detected:.2f} s"
    batch = "…" if times.first_batch is None else f"{times.first_batch:.1f} s"
    return f"killed → detected {detected} → first batch again {batch}"


def find_iggy_client(console: Console) -> Path:
    """An interpreter that has apache-iggy and nothing of ours, made when there is none."""
    home = Path(sys.prefix) / "peers" / f"iggy-{IGGY_VERSION}"
    python = home / "bin" / "python"
    if not (home / ".done").exists():
        console.print(f"[bold cyan]▸[/bold cyan] installing apache-iggy {IGGY_VERSION} into {home}")
        try:
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
            install = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                f"apache-iggy=={IGGY_VERSION}",
            ]
            subprocess.run(install, check=True)
        except subprocess.CalledProcessError as error:
            raise ConfigError(
                f"apache-iggy {IGGY_VERSION} could not be installed: {error}"
            ) from error
        (home / ".done").touch()
    return python
