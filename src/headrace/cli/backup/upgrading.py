"""The formats of a data directory, part by part, and their migrations."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.backup.metadata import FILE
from headrace.cli.backup.taking import LOG
from headrace.errors import ConfigError, FormatError, LockedError
from headrace.placement.metadata.store import SCHEMA_VERSION, open_database, schema_version
from headrace.runtime.system import system_runtime
from headrace.storage.folder import FORMAT_FILE, FORMAT_VERSION, Format, open_format
from headrace.storage.layout import LOCK


def bring_up_to_date(data_dir: Path, *, check: bool) -> list[dict[str, Any]]:
    """A newer format than ours is a FormatError, a directory in use a LockedError."""
    parts = []
    if (data_dir / LOG / FORMAT_FILE).exists():
        parts.append(_log(data_dir / LOG, check=check))
    if (data_dir / FILE).exists():
        parts.append(_placement(data_dir / FILE, check=check))
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
    return _told("log", found, FORMAT_VERSION, check=check)


def _placement(path: Path, *, check: bool) -> dict[str, Any]:
    try:
        with sqlite3.connect(path, timeout=1.0) as connection:
            found = schema_version(connection)
        connection.close()
    except sqlite3.Error as error:
        raise LockedError(f"{path} cannot be opened ({error}); stop headrace first") from error
    if not check or found > SCHEMA_VERSION:
        open_database(str(path)).close()
    return _told("placement", found, SCHEMA_VERSION, check=check)


def _told(part: str, found: int, known: int, *, check: bool) -> dict[str, Any]:
    outcome = "up to date" if found == known else "to be migrated" if check else "migrated"
    return {"part": part, "found": found, "known": known, "outcome": outcome}
