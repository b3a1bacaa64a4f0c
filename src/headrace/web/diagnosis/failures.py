"""Errors of a pipeline out of its events, and what fails in it, one problem for each cause. Pure.

A cause takes more down than the part that has it: operators in one query end together, a container
takes all of its own with it, and the same wrong password is told by each. So what fails with the
same words is one problem, and operators that went down with their container are that container's.
A problem keeps its name and its advice while things are started again; what is happening just now
is in its detail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from headrace.pipeline.controller.application.events import Event, EventType
from headrace.pipeline.controller.views import ApplicationView, ContainerView, OperatorView
from headrace.web.diagnosis.types import LastError, Problem, Severity

# As `FoundRecord.describe` writes it.
_RECORD = re.compile(
    r"(?P<operator>[\w.-]+) failed on (?P<record>\S+ partition \d+ offset \d+)"
    r" in window (?P<window>[0-9a-fA-F]+)"
)
RESTARTS_MANY = 3  # of a container, lately
LATELY_MS = 600_000
LINES_BESIDE = 12  # of a log, shown beside an error
_LISTED_MAX = 3
_NUMBERS = re.compile(r"[0-9a-fA-F]{6,}|\d+")
_LEVELS = ("CRITICAL", "FATAL", "ERROR", "WARNING", "WARN", "INFO", "DEBUG", "TRACE")
_LEVEL = re.compile(rf"\b({'|'.join(_LEVELS)})\b", re.IGNORECASE)
_RANKS = {"CRITICAL": 4, "FATAL": 4, "ERROR": 3, "WARNING": 2, "WARN": 2, "INFO": 1}


def errors(events: Iterable[Event]) -> list[LastError]:
    """Newest first."""
    found = [error_of(one) for one in events if one.level == "ERROR"]
    return found[::-1]


def error_of(event: Event) -> LastError:
    text = event.reason
    log = event.data.get("log") or {}
    told = _RECORD.search(text)
    return LastError(
        time_ms=event.time_ms,
        text=text,
        operator=told["operator"] if told else str(event.data.get("operator") or ""),
        container=str(event.data.get("container") or ""),
        window=told["window"] if told else "",
        record=told["record"] if told else "",
        log_file=str(log.get("file") or ""),
        log_offset=int(log.get("offset", -1)),
    )


def named_operator(text: str) -> str:
    """The operator that an error names as its place; empty if it names none."""
    told = _RECORD.search(text)
    return told["operator"] if told else ""


def with_log(error: LastError, before: str) -> LastError:
    """`before` is what stands in the log up to the error's place."""
    lines = before.rstrip("\n").splitlines()[-LINES_BESIDE:]
    return msgspec.structs.replace(error, log_line="\n".join(lines))


def filter_lines(text: str, level: str) -> str:
    """Lines of a level and worse. A line without one (of a traceback) goes with the one before."""
    least = _RANKS.get(level.upper(), 0)
    if not least:
        return text
    kept, keep = [], False
    for line in text.splitlines(keepends=True):
        named = _LEVEL.search(line[:80])
        if named:
            keep = _RANKS.get(named[1].upper(), 0) >= least
        if keep:
            kept.append(line)
    return "".join(kept)


def failures(view: ApplicationView, now_ms: int) -> Iterator[Problem]:
    causes = _causes(view)
    told: set[str] = set()  # containers whose end has its cause named
    for members in causes.values():
        told |= {one.container for one in members}
        yield _of_cause(view, members, now_ms)
    ends = view.state == "STOPPING"  # as it was told to
    for one in view.containers:
        if not ends and one.id not in told and _was_lost(view, one):
            yield _of_container(view, one, now_ms)


def failing_containers(view: ApplicationView) -> set[str]:
    """Those of which something fails, or that are being started again."""
    failing = {one.container for one in view.operators if one.failures}
    return failing | {one.id for one in view.containers if one.state == "KILLED"}


def _causes(view: ApplicationView) -> dict[str, list[OperatorView]]:
    """Operators that fail by themselves, by what the error says, numbers aside: offsets and
    addresses are others each time."""
    found: dict[str, list[OperatorView]] = {}
    for one in view.operators:
        if one.failures > one.failures_lost:
            said = _NUMBERS.sub("#", first_line(one.last_error or ""))
            found.setdefault(said or f"in {one.container}", []).append(one)
    return found


def _was_lost(view: ApplicationView, container: ContainerView) -> bool:
    """Down, or up again and not yet where it was."""
    fails = any(one.failures for one in view.operators if one.container == container.id)
    return fails or container.state == "KILLED"


def _of_cause(view: ApplicationView, members: Sequence[OperatorView], now_ms: int) -> Problem:
    name, error = view.name, members[0].last_error or ""
    operators = list(dict.fromkeys(one.name for one in members))
    guilty = named_operator(error)
    if guilty in operators or len(operators) == 1:
        who, verb = guilty if guilty in operators else operators[0], "fails"
    else:
        who, verb = _listed(operators), "fail together"
    containers = {one.container for one in members}
    homes = [one for one in view.containers if one.id in containers]
    again = max(one.failures for one in members) > 1 or any(
        _restarts_lately(view, one, now_ms) >= RESTARTS_MANY for one in homes
    )
    title = (
        f"{who} of {name} {verb} again and again"
        if again
        else f"{who} of {name} failed and {'is' if verb == 'fails' else 'are'} tried again"
    )
    now = [_now(one, now_ms) for one in homes if one.state != "ACTIVE"]
    return Problem(
        id=f"pipeline/{name}/operator fails/{operators[0]}",
        kind="operator fails",
        severity="critical" if again else "warning",
        subject="pipeline",
        name=name,
        title=title,
        detail=" ".join(filter(None, (first_line(error), *now[:1]))),
        next_step="Read the error beside its log line; the same rows are tried until it is fixed"
        " or its attempts are used up.",
        actions=("errors", "logs"),
        operator=who if who in operators else operators[0],
        container=members[0].container,
    )


def _of_container(view: ApplicationView, container: ContainerView, now_ms: int) -> Problem:
    name, number = view.name, container.index + 1
    lately = _restarts_lately(view, container, now_ms)
    severity: Severity = "critical" if lately >= RESTARTS_MANY else "warning"
    status = container.exit_status
    ended = f"Exit status {status}, {lately} times in ten minutes." if status is not None else ""
    return Problem(
        id=f"pipeline/{name}/container down/{number}",
        kind="container down",
        severity=severity,
        subject="pipeline",
        name=name,
        title=f"Container {number} of {name} went down and is started again",
        detail=" ".join(filter(None, (ended, _now(container, now_ms)))),
        next_step="It goes on from its checkpoint by itself. If it comes down again, its log says"
        " why.",
        actions=("logs", "errors"),
        container=container.id,
    )


def _now(container: ContainerView, now_ms: int) -> str:
    number = container.index + 1
    if container.state == "KILLED":
        wait = max(0, (container.restart_at_ms or now_ms) - now_ms) / 1000
        return f"Container {number} starts again in {wait:.0f} s."
    if container.state in ("NEW", "ALLOCATED"):
        return f"Container {number} is starting."
    return f"Container {number} runs again, and has yet to finish a window."


def _listed(names: Sequence[str]) -> str:
    shown = list(names[:_LISTED_MAX])
    if len(names) > _LISTED_MAX:
        shown = [*names[: _LISTED_MAX - 1], f"{len(names) - _LISTED_MAX + 1} more"]
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def _restarts_lately(view: ApplicationView, container: ContainerView, now_ms: int) -> int:
    prefix = container.id.rpartition(".")[0]
    return sum(
        one.type is EventType.STOP_CONTAINER
        and now_ms - one.time_ms <= LATELY_MS
        and str(one.data.get("container", "")).rpartition(".")[0] == prefix
        for one in view.events
    )


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:300]
