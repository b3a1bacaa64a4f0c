"""`format.json`: which version of the layout a data directory has, and which store it is.

    {"version": 2, "store_uuid": "6f1c…"}

The version covers everything in the directory: file names, marks, index, metadata, batches. A
newer one is refused, because guessing would destroy data; an older one is migrated at open, step by
step. Each step must be repeatable: it may be cut anywhere and is run again at the next open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from uuid import UUID

import msgspec

from headrace.errors import FormatError
from headrace.runtime import Disk, Random
from headrace.storage.layout import STREAMS

FORMAT_VERSION = 2
FORMAT_FILE = "format.json"

Migration = Callable[[Disk, str], None]


def _allow_journal(disk: Disk, folder: str) -> None:
    """Version 2 may hold acknowledged batches in its journal, which version 1 would not replay."""


MIGRATIONS: dict[int, Migration] = {1: _allow_journal}
"""From version n to n + 1. Version 1 is the first."""


class Format(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    store_uuid: UUID


def open_format(
    disk: Disk,
    folder: str,
    random: Random,
    *,
    migrations: Mapping[int, Migration] = MIGRATIONS,
    current: int = FORMAT_VERSION,
) -> Format:
    """Read the directory's format, migrate it, or found a new store in an empty directory."""
    path = f"{folder}/{FORMAT_FILE}"
    if not disk.exists(path):
        if disk.list(f"{folder}/{STREAMS}"):
            raise FormatError(
                f"the folder holds streams but no {FORMAT_FILE}: restore that file from a backup, "
                "or point --data-dir to another folder",
                path=path,
            )
        found = Format(version=current, store_uuid=random.uuid())
        _save(disk, path, found)
        return found
    found = _load(disk, path)
    if found.version > current:
        raise FormatError(
            f"the data directory has format version {found.version}, this program knows up to "
            f"{current}: install the release that wrote it, or a newer one",
            path=path,
        )
    while found.version < current:
        step = migrations.get(found.version)
        if step is None:
            raise FormatError(
                f"format version {found.version} can no longer be read: "
                "open it once with an earlier release",
                path=path,
            )
        step(disk, folder)
        found = Format(version=found.version + 1, store_uuid=found.store_uuid)
        _save(disk, path, found)
    return found


def _load(disk: Disk, path: str) -> Format:
    try:
        return msgspec.json.decode(disk.read(path), type=Format)
    except msgspec.DecodeError as error:
        raise FormatError(f"not a Headrace data directory: {error}", path=path) from error


def _save(disk: Disk, path: str, value: Format) -> None:
    disk.write_atomic(path, msgspec.json.encode(value) + b"\n")
