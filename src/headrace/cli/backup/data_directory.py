"""A data directory or a backup as a whole: whether it is sound, and the formats it is written in.

`examine` holds every byte against what else is known of it and changes nothing. `bring_up_to_date`
knows the format of each part and migrates it.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from headrace.cli.backup import manifest as kept
from headrace.cli.backup.taking import METADATA_FILE, logs, metadata_records
from headrace.config.datanode import StorageSettings
from headrace.errors import (
    ConfigError,
    CorruptionError,
    FormatError,
    HeadraceError,
    LockedError,
    NotFoundError,
)
from headrace.placement.metadata.records import RangeRecord
from headrace.placement.metadata.store import SCHEMA_VERSION, open_database, schema_version
from headrace.process.node_folders import NODE
from headrace.runtime.system import system_runtime
from headrace.runtime.system.disk import SystemDisk, SystemFile
from headrace.storage.folder import FORMAT_FILE, FORMAT_VERSION, Format, open_format
from headrace.storage.layout import (
    ATTACHMENT,
    DELETED,
    LOCK,
    LOG_SUFFIX,
    RANGE_METADATA,
    STREAMS,
    RangeKey,
    RangeMetadata,
    decode_attachment,
    decode_metadata,
    format_base,
    parse_base,
)
from headrace.storage.segments.formats import binding_of
from headrace.storage.segments.scan import Scanner

NODE_FILE = "node.json"


@dataclass
class Report:
    path: str
    files: int = 0
    ranges: int = 0
    segments: int = 0
    bytes: int = 0
    records: int = 0
    torn_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, object]:
        return {k: v for k, v in asdict(self).items() if k not in ("notes", "problems")}

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "sound": not self.problems}


@dataclass(frozen=True, slots=True)
class _RangeOnDisk:
    """A range as this disk has it."""

    metadata: RangeMetadata
    end: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A data node of this directory: its id, unless it never had one, and what its log holds."""

    node_id: int | None
    held: dict[RangeKey, _RangeOnDisk]


def examine(path: Path, progress: kept.Progress) -> Report:
    if not path.is_dir():
        raise ConfigError(f"there is no directory {path}")
    found = [log for log in logs(path) if log.is_dir()] or [path]
    with_data = [log for log in found if (log / FORMAT_FILE).exists()]
    if not with_data and not (path / METADATA_FILE).exists():
        raise ConfigError(f"{path} is neither a backup nor a data directory")
    _check_unused_metadata(path / METADATA_FILE)
    for log in found:
        _check_unused(log)
    report = Report(str(path))
    if (path / kept.MANIFEST).exists():
        _check_files(path, report, progress)
    nodes = [_Node(_node_id(log), _check_log(log, report, progress)) for log in with_data]
    if (path / METADATA_FILE).exists():
        _check_metadata(path, nodes, report)
    return report


def _check_unused_metadata(path: Path) -> None:
    """A server with several workers holds this file for all of them, one that comes back too."""
    if not path.exists():
        return
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
        try:
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
            raise LockedError(f"{path} is in use; verify a backup of it") from error


def _check_unused(log: Path) -> None:
    """A log that is written to would look torn, and its metadata late."""
    path = log / LOCK
    if not path.exists():
        return
    try:
        SystemDisk().lock(str(path)).release()
    except LockedError as error:
        raise LockedError(f"{log} is in use; verify a backup of it") from error


def _check_files(path: Path, report: Report, progress: kept.Progress) -> None:
    for name, wanted in kept.load(path).files.items():
        report.files += 1
        try:
            found = kept.checked(path / name, progress)
        except OSError as error:
            report.problems.append(f"{name}: {error.strerror}")
            continue
        if found != (wanted.bytes, wanted.crc32c):
            report.problems.append(f"{name}: differs from what was backed up")


# The log ------------------------------------------------------------------------------------------


def _check_log(log: Path, report: Report, progress: kept.Progress) -> dict[RangeKey, _RangeOnDisk]:
    try:
        found = msgspec.json.decode((log / FORMAT_FILE).read_bytes(), type=Format)
    except msgspec.DecodeError as error:
        report.problems.append(f"{FORMAT_FILE}: {error}")
        return {}
    if found.version > FORMAT_VERSION:
        report.problems.append(
            f"{FORMAT_FILE}: version {found.version}, this program knows up to {FORMAT_VERSION}"
        )
        return {}
    if found.version < FORMAT_VERSION:
        report.notes.append(f"format version {found.version}; the next start migrates it")
    held: dict[RangeKey, _RangeOnDisk] = {}
    for folder in sorted((log / STREAMS).glob("*/*")):
        stream, index = folder.parent.name, folder.name
        if not (stream.isdigit() and index.isdigit()) or (folder.parent / DELETED).exists():
            continue
        key = RangeKey(int(stream), int(index))
        try:
            one = _check_range(folder, key, found.store_uuid, report, progress)
        except CorruptionError as error:
            report.problems.append(f"{_name(key)}: {error}")
            continue
        if one is not None:
            held[key] = one
    return held


def _check_range(
    folder: Path, key: RangeKey, store: UUID, report: Report, progress: kept.Progress
) -> _RangeOnDisk | None:
    names = os.listdir(folder)
    bases = sorted(base for base in map(parse_base, names) if base is not None)
    if RANGE_METADATA not in names:
        if bases:
            raise CorruptionError("segments without range metadata", path=str(folder))
        return None  # its creation never finished
    path = folder / RANGE_METADATA
    metadata = decode_metadata(path.read_bytes(), str(path))
    if ATTACHMENT in names:
        decode_attachment((folder / ATTACHMENT).read_bytes(), str(folder / ATTACHMENT))
    report.ranges += 1
    end = metadata.start
    for base, successor in _with_successors(bases):
        if successor is not None and successor <= metadata.start:
            continue  # a trim that was cut short
        if base > end:
            report.problems.append(f"{_name(key)}: nothing holds the offsets {end} to {base}")
        end = _check_segment(folder, key, base, successor, metadata, store, report)
        progress((folder / f"{format_base(base)}{LOG_SUFFIX}").stat().st_size)
    if metadata.complete and end < metadata.end:
        report.problems.append(f"{_name(key)}: ends at {end}, sealed at {metadata.end}")
    report.records += max(0, end - metadata.start)
    return _RangeOnDisk(metadata, metadata.end if metadata.complete else end)


def _with_successors(bases: list[int]) -> Iterable[tuple[int, int | None]]:
    return zip_longest(bases, bases[1:])


def _check_segment(
    folder: Path,
    key: RangeKey,
    base: int,
    successor: int | None,
    metadata: RangeMetadata,
    store: UUID,
    report: Report,
) -> int:
    """Where it ends. Every batch from its first byte on, whatever an index says."""
    path = folder / f"{format_base(base)}{LOG_SUFFIX}"
    upper = successor if successor is not None else metadata.end if metadata.complete else None
    file = SystemFile(str(path), os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        size = file.size()
        scan = Scanner(
            file,
            size=size,
            base=base,
            binding=binding_of(store, key, base),
            index_interval_bytes=StorageSettings().index_interval_bytes,
            synced_offset=upper or 0,
            stop_offset=upper,
        ).run()
    finally:
        file.close()
    report.segments += 1
    report.bytes += size
    for span in scan.checkpoint.spans:
        where = f"offsets {span.start} to {span.end}" if span.end > span.start else "a mark"
        report.problems.append(f"{_name(key)}: {where} damaged in {path.name}")
    if scan.torn_bytes:
        report.torn_bytes += scan.torn_bytes
        report.notes.append(f"{_name(key)}: {scan.torn_bytes} bytes of an unfinished write")
    return scan.checkpoint.end.offset


# Metadata against data ----------------------------------------------------------------------------


def _check_metadata(path: Path, nodes: Sequence[_Node], report: Report) -> None:
    try:
        streams, ranges = metadata_records(path / METADATA_FILE)
    except HeadraceError as error:
        report.problems.append(f"{METADATA_FILE}: {error}")
        return
    for stream_id in sorted({one.stream_id for one in ranges} - streams.keys()):
        report.problems.append(f"{METADATA_FILE}: ranges of stream {stream_id}, which is not there")
    if all(node.node_id is None for node in nodes):
        report.notes.append("no data node here: metadata was not compared with data")
        return
    known = {RangeKey(one.stream_id, one.range_index) for one in ranges}
    for node in nodes:
        for one in ranges:
            living = one.stream_id in streams and streams[one.stream_id].deleted_ms < 0
            if node.node_id in one.replicas and living:
                key = RangeKey(one.stream_id, one.range_index)
                report.problems += _differences(one, node.held.get(key), node.node_id)
        for key in sorted(node.held.keys() - known):
            if node.held[key].end > node.held[key].metadata.start:
                report.notes.append(f"{_name(key)}: the placement manager does not know it")


def _node_id(log: Path) -> int | None:
    path = log.parent / NODE_FILE
    try:
        return int(json.loads(path.read_bytes())["node_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise NotFoundError(f"{path} does not name a node: {error}") from error


def _differences(one: RangeRecord, found: _RangeOnDisk | None, node: int) -> Iterable[str]:
    name = _name(RangeKey(one.stream_id, one.range_index))
    if found is None:
        yield f"{name}: the placement manager has it on this node, the disk does not"
        return
    if found.metadata.start > one.start and found.end > one.start:
        yield f"{name}: begins at {found.metadata.start}, the metadata says {one.start}"
    if one.end >= 0 and node not in one.incomplete:
        if found.end < one.end:
            yield f"{name}: ends at {found.end}, the metadata says {one.end}"
        elif found.metadata.final and found.metadata.end != one.end:
            yield f"{name}: sealed at {found.metadata.end}, the metadata says {one.end}"


def _name(key: RangeKey) -> str:
    return f"stream {key.stream_id} range {key.range_index}"


def bring_up_to_date(data_dir: Path, *, check: bool) -> list[dict[str, Any]]:
    """A newer format than ours is a FormatError, a directory in use a LockedError."""
    parts = [_log(log, check=check) for log in logs(data_dir) if (log / FORMAT_FILE).exists()]
    if (data_dir / METADATA_FILE).exists():
        parts.append(_placement(data_dir / METADATA_FILE, check=check))
    if not parts:
        raise ConfigError(f"{data_dir} is no data directory; name it with --data-dir")
    return parts


def _log(folder: Path, *, check: bool) -> dict[str, Any]:
    runtime = system_runtime()
    try:
        lock = runtime.disk.lock(str(folder / LOCK))
    except LockedError as error:
        raise LockedError(f"{folder} is in use; stop headrace first") from error
    try:
        found = msgspec.json.decode((folder / FORMAT_FILE).read_bytes(), type=Format).version
        if not check or found > FORMAT_VERSION:
            open_format(runtime.disk, str(folder), runtime.random)
    except msgspec.DecodeError as error:
        raise FormatError(f"{folder / FORMAT_FILE} cannot be read: {error}") from error
    finally:
        lock.release()
    part = "log" if folder.parent.name == NODE else f"log of {folder.parent.name}"
    return _format_row(part, found, FORMAT_VERSION, check=check)


def _placement(path: Path, *, check: bool) -> dict[str, Any]:
    try:
        with sqlite3.connect(path, timeout=1.0) as connection:
            found = schema_version(connection)
        connection.close()
    except sqlite3.Error as error:
        raise LockedError(f"{path} cannot be opened ({error}); stop headrace first") from error
    if not check or found > SCHEMA_VERSION:
        open_database(str(path)).close()
    return _format_row("placement", found, SCHEMA_VERSION, check=check)


def _format_row(part: str, found: int, known: int, *, check: bool) -> dict[str, Any]:
    outcome = "up to date" if found == known else "to be migrated" if check else "migrated"
    return {"part": part, "found": found, "known": known, "outcome": outcome}
