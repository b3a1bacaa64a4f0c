"""Errors of a pipeline out of its events, taken apart where their text says more. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from headrace.web.diagnosis.types import LastError

# As `FoundRecord.describe` writes it.
_RECORD = re.compile(
    r"(?P<operator>[\w.-]+) failed on (?P<record>\S+ partition \d+ offset \d+)"
    r" in window (?P<window>[0-9a-fA-F]+)"
)
LINES_BESIDE = 12  # of a log, shown beside an error
_LEVELS = ("CRITICAL", "FATAL", "ERROR", "WARNING", "WARN", "INFO", "DEBUG", "TRACE")
_LEVEL = re.compile(rf"\b({'|'.join(_LEVELS)})\b", re.IGNORECASE)
_RANKS = {"CRITICAL": 4, "FATAL": 4, "ERROR": 3, "WARNING": 2, "WARN": 2, "INFO": 1}


def errors(events: Iterable[Mapping[str, Any]]) -> list[LastError]:
    """Newest first."""
    found = [error_of(one) for one in events if one["level"] == "ERROR"]
    return found[::-1]


def error_of(event: Mapping[str, Any]) -> LastError:
    text = str(event["reason"])
    log = event.get("log") or {}
    told = _RECORD.search(text)
    return LastError(
        time_ms=event["time_ms"],
        text=text,
        operator=told["operator"] if told else str(event.get("operator") or ""),
        container=str(event.get("container") or ""),
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
