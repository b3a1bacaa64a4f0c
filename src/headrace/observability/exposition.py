"""Prometheus' text exposition format, version 0.0.4.

    # HELP name text
    # TYPE name counter|gauge
    name{label="value",...} number

A family holds at most SAMPLES_MAX samples; what does not fit is counted, never written, so that a
page of metrics is bounded whatever it describes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_MAX = 5_000
LABEL_CHARACTERS_MAX = 200
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})

Number = int | float


@dataclass(slots=True)
class Family:
    name: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: list[tuple[Mapping[str, str], Number]] = field(default_factory=list)
    dropped: int = 0

    def __post_init__(self) -> None:
        assert _NAME.fullmatch(self.name), self.name
        assert (self.kind == "counter") == self.name.endswith("_total"), self.name

    def add(self, value: Number, **labels: str) -> None:
        if len(self.samples) >= SAMPLES_MAX:
            self.dropped += 1
        else:
            self.samples.append((labels, value))


def format_families(families: Iterable[Family]) -> str:
    families = list(families)
    dropped = Family(
        "headrace_metrics_dropped", "gauge", "Samples left out because a family has too many."
    )
    for family in families:
        if family.dropped:
            dropped.add(family.dropped, family=family.name)
    return "".join(_format(one) for one in (*families, dropped) if one.samples)


def _format(family: Family) -> str:
    lines = [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
    lines += [
        f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples
    ]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (
        f'{name}="{value[:LABEL_CHARACTERS_MAX].translate(_ESCAPES)}"'
        for name, value in labels.items()
    )
    return "{" + ",".join(pairs) + "}"


def _number(value: Number) -> str:
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
