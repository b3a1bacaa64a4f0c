"""Numbers as people read them. What a number is follows from the name of its field, which is the
same in `--json`: there it stays a number."""

from __future__ import annotations

import re
from datetime import datetime

NEVER = 0xFFFF_FFFF_FFFF_FFFF  # Iggy's number for "never" and "unlimited"

_SIZES = ("KiB", "MiB", "GiB", "TiB", "PiB")
_MOMENTS = ("_at_us", "_at_ms", "start_time_us", "timestamp_us", "timestamp_ms")
_UNITS = {"_us": 1e-6, "_ms": 1e-3, "_seconds": 1.0}
_STEPS = (("d", 86400), ("h", 3600), ("min", 60))
_EMPTY = {"expiry_seconds": "never", "expires_at_us": "never", "max_bytes": "unlimited"}
"""What is said of a field whose value is null."""


_NAMED = {
    "lastHeartbeat": "last_heartbeat_at_ms", "checkpointTime": "checkpoint_ms",
    "latencyMA": "latency_ms", "latency": "latency_ms", "max_timestamp": "timestamp_ms",
}  # fmt: skip
"""Names that are not ours to choose, and what they would be called here."""


def humanly(name: str, value: object) -> str | None:
    """The value of a field in a table; None when its name says nothing about it."""
    name = _NAMED.get(name, name)
    if value is None:
        return _EMPTY.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if name == "bytes" or name.endswith("_bytes"):
        return size(value)
    if name.endswith("_percent"):
        return f"{value:.1f} %"
    if name.endswith(_MOMENTS):
        return moment(value * _UNITS[name[-3:]])
    unit = next((unit for unit in _UNITS if name.endswith(unit)), None)
    return None if unit is None else duration(value * _UNITS[unit])


def heading(name: str) -> str:
    """Of a column: its name without the unit, which the values have."""
    if name == "bytes":
        return "size"
    if name == "max_bytes":
        return "max size"
    for unit in ("_at_us", "_at_ms", *_UNITS, "_percent", "_bytes"):
        if name.endswith(unit):
            return name.removesuffix(unit).replace("_", " ")
    return _words(name)


def _words(name: str) -> str:
    """`memory_free` and `memoryMBFree` alike."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.replace("_", " ").lower() if parted != name else name.replace("_", " ")


def size(count: float) -> str:
    if count < 1024:
        return f"{count:g} B"
    step = 0
    count /= 1024
    while count >= 1023.95 and step < len(_SIZES) - 1:
        count /= 1024
        step += 1
    return f"{count:.1f} {_SIZES[step]}"


def duration(seconds: float) -> str:
    """In two steps at most: `2 d 3 h`, `1 min 5 s`, `0.25 s`, `12 ms`."""
    if seconds < 0.1:
        return f"{seconds * 1e3:.3g} ms" if seconds else "0 s"
    if seconds < 60:
        return f"{seconds:.3g} s"
    left, parts = round(seconds), []
    for name, length in (*_STEPS, ("s", 1)):
        if left >= length:
            parts.append(f"{left // length} {name}")
            left %= length
        elif parts:
            break
    return " ".join(parts[:2])


def moment(seconds: float) -> str:
    """Local, with the distance from UTC, as `--from` takes it too."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
