"""Options of `spark.readStream.format("headrace").option("windows", "true")`.

It reads an edge between queries, whose rows have the schema that is given. A container gives all of
them; nobody else needs to.

topic                   `_pipeline.<application>/<stream>`; address and credentials as for any topic
alignWith               other edges that the same query reads, separated by commas: a batch ends at
                        a window that all of them have closed
startingWindow          hex; the first batch reads windows after it. Default: the oldest there are
maxWindowsPerTrigger,   limits of a batch; one application window is always read. Default: 256 MiB,
maxRowsPerTrigger,      so that a query that was away for long comes back in several steps
maxBytesPerTrigger
applicationWindowCount, batches end at application windows, on the application's grid
windowMillis, startWindowMillis
partitionMask,          only rows whose hash, masked, is one of the keys, separated by commas
partitionKeys
skipUntil               hex; rows of windows up to it are not read (AT_MOST_ONCE)
emptyBatchMillis        run a batch without rows when windows have passed for so long; 0: never
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.errors import ConfigError, HeadraceError
from headrace.spark.edges.offsets import ApplicationWindows, EdgeLimits, Share
from headrace.spark.options import Target, parse_sink
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid, parse_window

EDGE_OPTIONS = (
    "windows",
    "alignWith",
    "startingWindow",
    "maxWindowsPerTrigger",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "applicationWindowCount",
    "windowMillis",
    "startWindowMillis",
    "partitionMask",
    "partitionKeys",
    "skipUntil",
    "emptyBatchMillis",
)

WINDOW_MS = 500
BATCH_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class EdgeOptions:
    target: Target
    aligned: tuple[Target, ...]
    """The other edges of the query."""
    starting: int | None
    limits: EdgeLimits
    application: ApplicationWindows | None
    share: Share | None
    skip_until: int
    empty_batch_ms: int


def reads_windows(options: Mapping[str, str]) -> bool:
    given = {name.lower(): value for name, value in options.items()}
    return given.get("windows", "false").lower() == "true"


def parse_edge(options: Mapping[str, str]) -> EdgeOptions:
    lower = {name.lower() for name in EDGE_OPTIONS}
    given = {name.lower(): value for name, value in options.items() if name.lower() in lower}
    server = {name: value for name, value in options.items() if name.lower() not in lower}
    names = [name.strip() for name in given.get("alignwith", "").split(",") if name.strip()]
    skip_until = _window(given, "skipUntil")
    return EdgeOptions(
        target=parse_sink(server).target,
        aligned=tuple(_beside(server, name) for name in names),
        starting=_window(given, "startingWindow"),
        limits=EdgeLimits(
            windows_max=_number(given, "maxWindowsPerTrigger") or None,
            rows_max=_number(given, "maxRowsPerTrigger") or None,
            bytes_max=_number(given, "maxBytesPerTrigger") or BATCH_BYTES,
        ),
        application=_application(given),
        share=_share(given),
        skip_until=NO_WINDOW if skip_until is None else skip_until,
        empty_batch_ms=_number(given, "emptyBatchMillis"),
    )


def _beside(server: Mapping[str, str], topic: str) -> Target:
    others = {name: value for name, value in server.items() if name.lower() != "stream"}
    return parse_sink({**others, "topic": topic}).target


def _application(given: Mapping[str, str]) -> ApplicationWindows | None:
    count = _number(given, "applicationWindowCount") or 1
    if count == 1:
        return None
    width_ms = _number(given, "windowMillis") or WINDOW_MS
    try:
        return ApplicationWindows(WindowGrid(_number(given, "startWindowMillis"), width_ms), count)
    except HeadraceError as error:
        raise ConfigError(str(error)) from error


def _window(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        return parse_window(text)
    except HeadraceError:
        raise ConfigError(f"{name} is a window id in hex: {text}") from None


def _number(given: Mapping[str, str], name: str) -> int:
    text = given.get(name.lower(), "0")
    if not text.isdecimal():
        raise ConfigError(f"{name} is a whole number: {text}")
    return int(text)


def _share(given: Mapping[str, str]) -> Share | None:
    mask, keys = given.get("partitionmask"), given.get("partitionkeys")
    if mask is None and keys is None:
        return None
    try:
        share = Share(int(mask or ""), tuple(int(key) for key in (keys or "").split(",")))
    except ValueError:
        raise ConfigError("partitionMask and partitionKeys belong together, as numbers") from None
    if share.mask < 1 or any(not 0 <= key <= share.mask for key in share.keys):
        raise ConfigError(f"partitionKeys are numbers up to the mask: {mask} {keys}")
    return share
