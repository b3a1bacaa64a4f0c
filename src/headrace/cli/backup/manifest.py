"""`backup.json`, written last: what a backup holds, so that a part of one is not taken for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

import msgspec
from crc32c import crc32c

from headrace.errors import ConfigError, CorruptionError

MANIFEST = "backup.json"
VERSION = 1
CHUNK_BYTES = 4 * 1024 * 1024

Progress: TypeAlias = Callable[[int], None]


class BackupFile(msgspec.Struct, frozen=True):
    bytes: int
    crc32c: int
    mode: int = 0o600


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    headrace: str
    created: str
    files: dict[str, BackupFile]
    """By their path in the data directory."""

    @property
    def bytes(self) -> int:
        return sum(kept.bytes for kept in self.files.values())


def load(folder: Path) -> Manifest:
    path = folder / MANIFEST
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} has no {MANIFEST}: it is no backup, or one that did not finish; take another"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if found.version > VERSION:
        raise ConfigError(
            f"{path} has version {found.version}, this program knows up to {VERSION}: "
            f"restore it with headrace {found.headrace} or a newer one"
        )
    for name in found.files:
        if name.startswith("/") or ".." in Path(name).parts:
            raise CorruptionError("the manifest names a file outside the backup", path=name)
    return found


def save(folder: Path, manifest: Manifest) -> None:
    draft = folder / f"{MANIFEST}.new"
    with draft.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)))
        synced(file)
    draft.replace(folder / MANIFEST)
    sync_folder(folder)


def copy(
    source: Path, target: Path, *, bytes_max: int, mode: int, progress: Progress
) -> BackupFile:
    """The first `bytes_max` bytes of a file, durable; what they are, by checksum."""
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    crc = done = 0
    with source.open("rb") as reading, target.open("xb") as writing:
        os.fchmod(writing.fileno(), mode)
        while data := reading.read(min(CHUNK_BYTES, bytes_max - done)):
            crc = crc32c(data, crc)
            done += len(data)
            writing.write(data)
            progress(len(data))
        synced(writing)
    return BackupFile(done, crc, mode)


def checked(path: Path, progress: Progress) -> tuple[int, int]:
    """Length and checksum of a file as it is."""
    crc = done = 0
    for data in chunks(path):
        crc = crc32c(data, crc)
        done += len(data)
        progress(len(data))
    return done, crc


def chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(CHUNK_BYTES):
            yield data


def synced(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
