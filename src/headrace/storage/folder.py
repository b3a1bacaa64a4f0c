"""The data directory as a whole: its format, its ranges and their recovery, the removal of streams.

`format.json` says which version of the layout a data directory has, and which store it is:

    {"version": 2, "store_uuid": "6f1c…"}

The version covers everything in the directory: file names, marks, index, metadata, batches. A
newer one is refused, because guessing would destroy data; an older one is migrated at open, step by
step. Each step must be repeatable: it may be cut anywhere and is run again at the next open.

Everything here but `recover_all` blocks and runs in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import msgspec

from headrace.config.datanode import StorageSettings
from headrace.errors import AlreadyExistsError, CorruptionError, FormatError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Executor, Lock, Random
from headrace.storage.layout import (
    ATTACHMENT,
    CLEAN_STOP,
    DELETED,
    LOCK,
    LOG_SUFFIX,
    RANGE_METADATA,
    STREAMS,
    Point,
    RangeKey,
    RangeMetadata,
    encode_attachment,
    encode_metadata,
    range_folder,
    stream_folder,
)
from headrace.storage.range.recovery import RecoveredRange, recover_range

FORMAT_VERSION = 2
FORMAT_FILE = "format.json"
log = get_logger(__name__)

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


@dataclass(frozen=True, slots=True)
class OpenedFolder:
    lock: Lock
    store_uuid: UUID
    clean: bool
    keys: Sequence[RangeKey]


def open_folder(disk: Disk, folder: str, random: Random) -> OpenedFolder:
    disk.make_folder(folder)
    lock = disk.lock(f"{folder}/{LOCK}")
    try:
        is_new = not disk.exists(f"{folder}/{FORMAT_FILE}")
        found = open_format(disk, folder, random)
        marker = f"{folder}/{CLEAN_STOP}"
        clean = disk.exists(marker)
        if clean:  # durable before anything is written: a crash from now on is an unclean stop
            disk.remove(marker)
            disk.sync_folder(folder)
        return OpenedFolder(lock, found.store_uuid, clean or is_new, _list_ranges(disk, folder))
    except BaseException:
        lock.release()
        raise


def _list_ranges(disk: Disk, folder: str) -> list[RangeKey]:
    keys: list[RangeKey] = []
    for stream in disk.list(f"{folder}/{STREAMS}"):
        if not stream.isdigit():
            continue
        names = disk.list(stream_folder(folder, int(stream)))
        if DELETED in names:
            remove_stream(disk, folder, int(stream))
            continue
        if not names:  # every range of it was deleted
            disk.remove_tree(stream_folder(folder, int(stream)))
        found = {RangeKey(int(stream), int(name)) for name in names if name.isdigit()}
        for name in names:
            index = name.removeprefix(f"{DELETED}-")
            if index != name and index.isdigit():
                found.discard(RangeKey(int(stream), int(index)))
                remove_range(disk, folder, RangeKey(int(stream), int(index)))
        keys.extend(found)
    return sorted(keys)


def create_range_folder(
    disk: Disk, folder: str, key: RangeKey, metadata: RangeMetadata, attachment: bytes = b""
) -> None:
    place = range_folder(folder, key)
    if disk.exists(f"{stream_folder(folder, key.stream_id)}/{DELETED}-{key.range_index}"):
        remove_range(disk, folder, key)  # that failed half-way
    disk.make_folder(place)
    if disk.exists(f"{place}/{RANGE_METADATA}"):
        if any(name.endswith(LOG_SUFFIX) for name in disk.list(place)):
            raise AlreadyExistsError("range folder exists", path=place)
        # A creation whose last step failed, when the file was in its place already: the range was
        # never known to anybody. Left there, it could not be made again before a restart.
        remove_range(disk, folder, key)
        disk.make_folder(place)
    if attachment:  # first: where there is metadata, it is whole
        disk.write_atomic(f"{place}/{ATTACHMENT}", encode_attachment(attachment))
    disk.write_atomic(f"{place}/{RANGE_METADATA}", encode_metadata(metadata))


def remove_stream(disk: Disk, folder: str, stream_id: int) -> None:
    """Tombstone, ranges, tombstone: a power cut in between never leaves half a range behind."""
    stream = stream_folder(folder, stream_id)
    names = disk.list(stream)
    if not names:
        return
    disk.write_atomic(f"{stream}/{DELETED}", b"")
    for name in names:
        if name != DELETED:
            disk.remove_tree(f"{stream}/{name}")
    disk.sync_folder(stream)
    disk.remove_tree(stream)
    disk.sync_folder(f"{folder}/{STREAMS}")


def remove_range(disk: Disk, folder: str, key: RangeKey) -> None:
    """As `remove_stream`, of one range."""
    stream = stream_folder(folder, key.stream_id)
    tombstone = f"{stream}/{DELETED}-{key.range_index}"
    if not (disk.exists(range_folder(folder, key)) or disk.exists(tombstone)):
        return
    disk.write_atomic(tombstone, b"")
    disk.remove_tree(range_folder(folder, key))
    disk.sync_folder(stream)
    disk.remove(tombstone)
    disk.sync_folder(stream)


FoundRange = RecoveredRange | tuple[RangeKey, CorruptionError] | None


async def recover_all(
    disk: Disk,
    executor: Executor,
    opened: OpenedFolder,
    folder: str,
    settings: StorageSettings,
    *,
    known: Mapping[tuple[RangeKey, int], Point],
) -> list[FoundRange]:
    """`known` tells how far segments were acknowledged where they may not tell it themselves.

    One thread looks at all ranges: that is Python's work on small files, and several threads would
    only take the interpreter from each other (three took thrice the processor time of one). What
    has to be synced then is synced by many.
    """
    found = await executor.run(
        _recover_some, disk, folder, opened.keys, opened.store_uuid, settings, known
    )
    paths = [each.unsynced for each in found if isinstance(each, RecoveredRange) and each.unsynced]
    shares = min(settings.commit_threads, len(paths))
    await asyncio.gather(
        *(executor.run(_sync_files, disk, paths[share::shares]) for share in range(shares))
    )
    return found


def _sync_files(disk: Disk, paths: Sequence[str]) -> None:
    for path in paths:
        file = disk.open(path)
        try:
            file.sync_data()
        finally:
            file.close()


def _recover_some(
    disk: Disk,
    folder: str,
    keys: Sequence[RangeKey],
    store_uuid: UUID,
    settings: StorageSettings,
    known: Mapping[tuple[RangeKey, int], Point],
) -> list[FoundRange]:
    found: list[FoundRange] = []
    for key in keys:
        place = range_folder(folder, key)
        try:
            found.append(recover_range(disk, place, key, store_uuid, settings, known))
        except CorruptionError as error:
            log.error("range unreadable", stream_id=key.stream_id, error=str(error))
            found.append((key, error))
    return found
