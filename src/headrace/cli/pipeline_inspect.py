"""headrace pipeline containers|operators|events|kill-container|stack-trace|log-level

Over Stram's REST paths, which anyone may call: see /openapi.json.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import (
    HTTP,
    PASSWORD,
    USERNAME,
    AsJson,
    Http,
    Password,
    Username,
    takes_tls,
)
from headrace.cli.output import note, print_json, print_rows
from headrace.cli.pipelines import Api

Name = Annotated[str, typer.Argument(metavar="NAME")]
Container = Annotated[str, typer.Argument(metavar="CONTAINER")]
CONTAINERS = ("id", "state", "jvmName", "numOperators", "memoryMBFree", "lastHeartbeat", "restarts")
OPERATORS = (
    "id",
    "name",
    "status",
    "container",
    "totalTuplesProcessed",
    "totalTuplesEmitted",
    "tuplesProcessedPSMA",
    "tuplesEmittedPSMA",
    "latencyMA",
    "currentWindowId",
    "recoveryWindowId",
)
EVENTS = ("id", "timestamp", "type", "level", "reason")


class StramApi(Api):
    """The paths that Apache Apex had."""

    def __init__(self, address: str, username: str, password: str) -> None:
        super().__init__(address, username, password)
        self._base = f"{self._base.removesuffix('/api')}/ws/v2/stram"


def containers(
    name: Name,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """List a pipeline's containers."""
    found = StramApi(http, username, password).get(f"/{name}/physicalPlan/containers")
    _print(found["containers"], CONTAINERS, as_json=as_json)


def operators(
    name: Name,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """List a pipeline's operators: rows, rates, latency and windows."""
    found = StramApi(http, username, password).get(f"/{name}/physicalPlan/operators")
    _print(found["operators"], OPERATORS, as_json=as_json)


def events(
    name: Name,
    after: Annotated[int, typer.Option("--after", help="Only events with a higher id.")] = 0,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """List what happened to a pipeline, newest last."""
    found = StramApi(http, username, password).get(f"/{name}/events?offset={after}")
    _print(found["events"], EVENTS, as_json=as_json)


def kill_container(
    name: Name,
    container: Container,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
) -> None:
    """Kill a container; the controller starts it again."""
    path = f"/{name}/physicalPlan/containers/{container}/kill"
    StramApi(http, username, password).post(path)
    note(f"{container} is killed and will be started again")


def stack_trace(
    name: Name,
    container: Container,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Ask a container what its threads, in Python and in the JVM, are doing now."""
    path = f"/{name}/physicalPlan/containers/{container}/stackTrace"
    found = StramApi(http, username, password).get(path)
    if as_json:
        print_json(found)
        return
    for language in ("python", "jvm"):
        for thread in found[language]:
            print(f"{language} {thread.get('name')} {thread.get('state', '')}".rstrip())
            for line in thread.get("stack", []):
                print(f"    {line.strip()}")


def log_level(
    name: Name,
    logger: Annotated[str, typer.Argument(metavar="LOGGER", help="Its name; root for all.")],
    level: Annotated[str, typer.Argument(metavar="LEVEL", help="DEBUG, INFO, WARN, ERROR, OFF")],
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
) -> None:
    """Set a log level in every container of a pipeline."""
    body = {"loggers": [{"target": logger, "logLevel": level}]}
    StramApi(http, username, password).post(f"/{name}/loggers", body)
    note(f"{logger}: {level.upper()} with the next heartbeats")


def _print(rows: list[dict[str, object]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)  # whole: a program chooses for itself
    else:
        print_rows(rows, columns, as_json=False)


def add_to(app: typer.Typer) -> None:
    for name, command in (
        ("containers", containers),
        ("operators", operators),
        ("events", events),
        ("kill-container", kill_container),
        ("stack-trace", stack_trace),
        ("log-level", log_level),
    ):
        app.command(name)(takes_tls(command))
