"""What an error's text says: the one sentence that matters, and whether trying again can help.

Spark wraps what went wrong in tracebacks and plans; the sentence is what its author needs. A
mistake, as a column that does not exist, is the same at every attempt; what passes by itself, as a
server that is away, is worth any number of them. Messages that a batch skipped because they were
lost are told as such a text, too, and read out of it again. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.errors import CorruptionError

if TYPE_CHECKING:
    from headrace.spark.source.batch_plan import Offsets

SENTENCE_CHARACTERS_MAX = 1_000


class Kind(Enum):
    MISTAKE = "mistake"  # in code or plan: the next attempt ends in the same way
    PASSING = "passing"  # somebody or something is away, or full
    OTHER = "other"


_PLAN = re.compile(r"\n+(?:=== Streaming Query ===|JVM stacktrace:)")
_FRAME = '  File "'
_RAISED = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::\s|$)")
_SPARKS = re.compile(r"^(?:[a-z]\w*\.)+(?:\w*Exception|\w*Error): (?=\[[A-Z])")
_MODULES = re.compile(r"^(?:[a-z_]\w*\.)+(?=[A-Z]\w*:)")

# SQL's classes of errors in a statement, and of what is not supported.
_STATEMENT = re.compile(r"SQLSTATE: (?:42|0A|07)")
_MISTAKES = (
    "AnalysisException", "ConfigError", "ImportError", "IndentationError", "ModuleNotFoundError",
    "NameError", "ParseException", "SyntaxError",
)  # fmt: skip
_RETRYABLE = {
    each.__name__
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, errors.HeadraceError) and each.retryable
} | {"DiskFullError", "LockedError"}
_AWAY = re.compile(
    r"Connect(?:ion)?\w*(?:Error|Exception|Timeout)|Timeout(?:Error|Exception|Expired)?\b|"
    r"BrokenPipe|OperationalError|gaierror|Unavailable|UnknownHost|"
    r"[Cc]onnection (?:refused|reset|closed|aborted)|timed out|No space left on device|"
    r"Too many open files|ExecutorLostFailure|SparkContext was shut ?down|\b50[234] [A-Z]"
)

_GAP = re.compile(
    r"messages lost: partition (?P<partition>\d+) of the topic with uid (?P<uid>\S+) "
    r"(?:is gone|was read up to (?P<position>\d+) and went on at (?P<resumed>\d+))"
)


def sentence(text: str) -> str:
    """What was raised, without where and under which plan."""
    body = _PLAN.split(text, maxsplit=1)[0].strip()
    lines = body.split("\n")
    frames = [index for index, line in enumerate(lines) if line.startswith(_FRAME)]
    found = lines[0]
    if frames:
        found = next((one for one in lines[frames[-1] + 1 :] if _RAISED.match(one)), found)
    found = _MODULES.sub("", _SPARKS.sub("", found.strip()))
    return found.rstrip(";")[:SENTENCE_CHARACTERS_MAX]


def readable(text: str) -> str:
    """The text with its sentence in front."""
    found = sentence(text)
    return text if text.startswith(found) else f"{found}\n\n{text}"


def kind_of(text: str) -> Kind:
    found = sentence(text)
    name = found.partition(":")[0].rpartition(".")[2]
    if name in _RETRYABLE or _AWAY.search(found):
        return Kind.PASSING
    if name in _MISTAKES or _STATEMENT.search(found):
        return Kind.MISTAKE
    return Kind.OTHER


def skipped(progress: Mapping[str, Any]) -> list[str]:
    """What a batch skipped, from the offsets in Spark's progress record."""
    found = []
    for source in progress.get("sources", []):
        start, end = (_offsets(source.get(name)) for name in ("startOffset", "endOffset"))
        # A batch without data ends where it starts, with the beginnings of the one before it.
        if start is not None and end is not None and start != end:
            found += _between(start, end)
    return found


def _offsets(value: Any) -> Offsets | None:
    """None for a batch that was the first, and for other sources."""
    from headrace.spark.source.batch_plan import Offsets  # a declaration needs nothing of Spark

    try:
        return Offsets.from_json(json.loads(value) if isinstance(value, str) else value)
    except (CorruptionError, ValueError, AttributeError):
        return None


def _between(start: Offsets, end: Offsets) -> list[str]:
    found = []
    for (uid, partition), at in sorted(end.begins.items()):
        generation, _ = end.positions[uid, partition]
        before = start.positions.get((uid, partition), (generation, at))
        if before != (generation, at):
            position = before[1]
            found.append(
                f"messages lost: partition {partition} of the topic with uid {uid} "
                f"was read up to {position} and went on at {at}"
            )
    for uid, partition in sorted(set(start.positions) - set(end.positions)):
        found.append(f"messages lost: partition {partition} of the topic with uid {uid} is gone")
    return found


def read_gap(text: str) -> dict[str, Any] | None:
    """What a text of `skipped` says, as numbers; None for any other text."""
    found = _GAP.match(text)
    if found is None:
        return None
    told = {name: value for name, value in found.groupdict().items() if value is not None}
    gap: dict[str, Any] = {"topic_uid": told.pop("uid")}
    gap |= {name: int(value) for name, value in told.items()}
    if "position" in gap:
        gap["lost"] = max(0, gap["resumed"] - gap["position"])
    return gap
