"""A backup of a data directory in use, and the way back into an empty one.

What belongs together, and in which order it is taken:

1. Spark's notes of finished batches (`commits`). They must not be newer than the log's state: a
   batch that is noted as finished is never run again, so its window has to be in the state.
2. At one moment, in which the state does not move: the placement manager's metadata, and of every
   file of the log its length. A window that the state calls closed is then in the topics, and
   nothing is in them that the state does not know of. Links keep the files where they are until
   they are copied, whatever retention removes.
3. Those files, up to that length, from the links: the bytes of a log do not change.
4. The rest of the checkpoints (offsets, windows, state), which must not be older than the state: a
   batch that is run again has to find the offsets and the window it had.

The state moves with every create, delete, window and controller's event, seldom within the few
milliseconds of step 2; that step is repeated until it does not. The journal is not needed: what it
protects is in the segment files already, for whoever reads them through the system.

A restore writes the `format.json` of logs last, and that of the folder `node` as the last of all: a
directory that lacks one of these files is refused at start, so that half a restore is not taken for
a whole one.

A server with several workers has a data node in each of them (`node`, `node-1`, ...): the moment is
one for all of them, because the control state that must not move meanwhile is one.

`Metadata` is the placement manager's SQLite file, taken while it is in use. The manager holds the
file exclusively, so SQLite itself would let nobody else in. The file and its write-ahead log are
read as bytes, and taken only if neither has changed in the meantime: the write-ahead log is
appended to, and what is torn at its end SQLite leaves out.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TypeAlias

from headrace.cli.backup.manifest import (
    MANIFEST,
    BackupFile,
    Manifest,
    Progress,
    checked,
    copy,
    load,
    save,
    sync_folder,
)
from headrace.errors import AlreadyExistsError, ConfigError, CorruptionError
from headrace.placement.metadata.records import RangeRecord, StreamRecord, Table, decode_record
from headrace.process.node_folders import NODE, node_folder, node_numbers
from headrace.process.startup import server_note
from headrace.storage.folder import FORMAT_FILE
from headrace.storage.layout import (
    DRAFT_SUFFIX,
    INDEX_SUFFIX,
    JOURNAL,
    LOCK,
    LOG_SUFFIX,
    STREAMS,
    parse_base,
)

METADATA_FILE = "placement/metadata.sqlite"
SIDE_FILES = ("-wal", "-shm")
_WAL = "-wal"

Signature: TypeAlias = tuple[tuple[int, int, int], ...]


def metadata_signature(data_dir: Path) -> Signature:
    """Changes with every transaction."""
    found = []
    for name in (METADATA_FILE, METADATA_FILE + _WAL):
        try:
            stat = os.stat(data_dir / name)
        except FileNotFoundError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Metadata:
    database: bytes
    log: bytes

    @classmethod
    def read(cls, data_dir: Path) -> Metadata | None:
        """Read both files; None where there are none: a data node or a broker of a cluster."""
        path = data_dir / METADATA_FILE
        if not path.exists():
            return None
        log = Path(f"{path}{_WAL}")
        return cls(path.read_bytes(), log.read_bytes() if log.exists() else b"")

    def save(self, target: Path) -> None:
        """Write one file with everything in it."""
        path = target / METADATA_FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(self.database)
        Path(f"{path}{_WAL}").write_bytes(self.log)
        try:
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                (said,) = connection.execute("PRAGMA integrity_check").fetchone()
            connection.close()
        except sqlite3.Error as error:
            raise CorruptionError(f"the placement store cannot be read: {error}") from error
        if said != "ok":
            raise CorruptionError(f"the placement store is damaged: {said}")
        for suffix in SIDE_FILES:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.chmod(0o600)


def metadata_records(path: Path) -> tuple[dict[int, StreamRecord], list[RangeRecord]]:
    """Read the records of streams and ranges out of a file that nobody uses."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            (said,) = connection.execute("PRAGMA integrity_check").fetchone()
            if said != "ok":
                raise CorruptionError(f"the placement store is damaged: {said}")
            found = [
                decode_record(table, value)
                for table in (Table.STREAMS, Table.RANGES)
                for (value,) in connection.execute(f"SELECT value FROM {table}")
            ]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise CorruptionError(f"the placement store cannot be read: {error}") from error
    streams = {one.stream_id: one for one in found if isinstance(one, StreamRecord)}
    return streams, [one for one in found if isinstance(one, RangeRecord)]


LOG = "log"
SEEN = "metadata.json"  # newer than the metadata that is restored with it, perhaps
_LEFT_OUT = frozenset((f"{LOG}/{LOCK}", f"{LOG}/{JOURNAL}", SEEN))  # of every data node
APPLICATIONS = "applications"
COMMITS = "commits"
STATE_PREFIX = "s/"  # of the names of streams that hold control state
OFFSETS = "s/offsets"  # and what begins so may move: a stored offset points below what is there
TRIES_MAX = 200
_LINKS = ".backup-{pid}"
# Can be made again, or says only where somebody listened.
_SKIPPED = frozenset(("logs", ".environments", "__pycache__", "recovery"))
_TEMPORARY = (".headrace-tmp", ".tmp", ".crc.tmp", ".sock", ".sock.inbox")


@dataclass(frozen=True, slots=True)
class FileToCopy:
    """A file of the data directory at the moment of the backup."""

    name: str
    source: Path
    bytes: int
    mode: int
    finished: bool = False
    """A segment that has a successor: nobody writes to it any more."""


@dataclass(frozen=True, slots=True)
class BackupMade:
    manifest: Manifest
    tries: int
    moved: bool
    """The state moved during every try; metadata and data may be a moment apart."""


def take(data_dir: Path, target: Path, *, link: bool, progress: Progress) -> BackupMade:
    if not any(log.is_dir() for log in logs(data_dir)) and not (data_dir / METADATA_FILE).exists():
        raise ConfigError(f"{data_dir} is no data directory; name it with --data-dir")
    if target.exists() and any(target.iterdir()):
        raise AlreadyExistsError(f"{target} is not empty; give the backup a folder of its own")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    links = data_dir / _LINKS.format(pid=os.getpid())
    files: dict[str, BackupFile] = {}
    try:
        for name in _applications(data_dir, commits=True):
            _copy_if_there(data_dir, target, name, files, progress)
        found, metadata, tries, moved = _sweep(data_dir, links)
        for each in found:
            files[each.name] = _keep(each, target, progress, link=link)
        if metadata is not None:
            metadata.save(target)
            files[METADATA_FILE] = BackupFile(*checked(target / METADATA_FILE, progress))
        for name in _applications(data_dir, commits=False):
            _copy_if_there(data_dir, target, name, files, progress)
    finally:
        shutil.rmtree(links, ignore_errors=True)
    for folder in {target, *((target / name).parent for name in files)}:
        sync_folder(folder)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(headrace=version("headrace"), created=created, files=files)
    save(target, manifest)
    return BackupMade(manifest, tries, moved)


def logs(data_dir: Path) -> list[Path]:
    """Of the data nodes that a data directory or a backup has."""
    numbers = node_numbers(os.listdir(data_dir)) if data_dir.is_dir() else []
    return [data_dir / node_folder(number) / LOG for number in numbers]


def bytes_in(folder: Path) -> int:
    """About; for a progress bar."""
    return sum(_size(Path(root, name)) for root, _, names in os.walk(folder) for name in names)


# The moment ---------------------------------------------------------------------------------------


def _sweep(data_dir: Path, links: Path) -> tuple[list[FileToCopy], Metadata | None, int, bool]:
    for tries in range(1, TRIES_MAX + 1):
        shutil.rmtree(links, ignore_errors=True)
        links.mkdir(mode=0o700)
        before = metadata_signature(data_dir)
        metadata = Metadata.read(data_dir)
        streams = _control_streams(metadata, links)
        state = frozenset(each for each, name in streams.items() if not name.startswith(OFFSETS))
        offsets = frozenset(each for each, name in streams.items() if name.startswith(OFFSETS))
        sizes = _sizes(data_dir, state)
        found = list(_pinned(data_dir, links, first=offsets))
        if _sizes(data_dir, state) == sizes and metadata_signature(data_dir) == before:
            return found, metadata, tries, False
    return found, metadata, TRIES_MAX, True


def _control_streams(metadata: Metadata | None, links: Path) -> dict[str, str]:
    """Folder and name of the streams that hold state; none where no placement manager is."""
    if metadata is None:
        return {}
    scratch = links / "metadata"
    metadata.save(scratch)
    streams, _ = metadata_records(scratch / METADATA_FILE)
    shutil.rmtree(scratch)
    return {
        str(one.stream_id): one.name
        for one in streams.values()
        if one.name.startswith(STATE_PREFIX)
    }


def _sizes(data_dir: Path, streams: frozenset[str]) -> dict[str, int]:
    found = {}
    for log in logs(data_dir):
        for stream in streams:
            for path in (log / STREAMS / stream).glob(f"*/*{LOG_SUFFIX}"):
                found[str(path)] = _size(path)
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _pinned(data_dir: Path, links: Path, *, first: frozenset[str]) -> Iterator[FileToCopy]:
    """Every file but those of applications and the metadata, linked so that it stays; those of the
    streams `first` before all others, so that no stored offset points above what is there."""
    listed: list[tuple[bool, str, int]] = []
    for root, folders, names in os.walk(data_dir):
        place = Path(root)
        if place == data_dir:
            folders[:] = [each for each in folders if each != APPLICATIONS and each[0] != "."]
        newest = max((base for base in map(parse_base, names) if base is not None), default=-1)
        late = place.parent.name not in first
        listed += [(late, str((place / name).relative_to(data_dir)), newest) for name in names]
    for number, (_, name, newest) in enumerate(sorted(listed)):
        if _is_kept(name, newest):
            one = _pin(data_dir / name, links / str(number), name, newest)
            if one is not None:
                yield one


def _is_kept(name: str, newest: int) -> bool:
    last = name.rpartition("/")[2]
    folder, _, rest = name.partition("/")
    if (rest in _LEFT_OUT and node_numbers([folder])) or name.startswith(METADATA_FILE):
        return False
    if name in (
        server_note.NOTE,
        server_note.LOG,
    ):  # of the process that serves it, not of its data
        return False
    if last.endswith((DRAFT_SUFFIX, *_TEMPORARY)):
        return False
    # The index of the last segment tells of a later moment than its log; it is made again.
    return not (
        last.endswith(INDEX_SUFFIX)
        and parse_base(last.removesuffix(INDEX_SUFFIX) + LOG_SUFFIX) == newest
    )


def _pin(path: Path, link: Path, name: str, newest: int) -> FileToCopy | None:
    try:
        try:
            os.link(path, link)
        except FileNotFoundError:
            raise
        except OSError:
            link = path  # no links here: a file that retention removes ends the backup
        stat = os.stat(link)
    except FileNotFoundError:
        return None  # removed a moment ago, and the metadata says so
    base = parse_base(path.name)
    return FileToCopy(
        name, link, stat.st_size, stat.st_mode & 0o777, base is not None and base < newest
    )


# Copying ------------------------------------------------------------------------------------------


def _keep(one: FileToCopy, target: Path, progress: Progress, *, link: bool) -> BackupFile:
    place = target / one.name
    if link and one.finished:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.link(one.source, place)
        except OSError as error:
            raise ConfigError(f"cannot link {place}: {error.strerror}; leave --link out") from error
        return BackupFile(*checked(place, progress), one.mode)
    return copy(one.source, place, bytes_max=one.bytes, mode=one.mode, progress=progress)


def _applications(data_dir: Path, *, commits: bool) -> Iterator[str]:
    """Files of pipelines: notes of finished batches, or all the others."""
    for root, folders, names in os.walk(data_dir / APPLICATIONS):
        folders[:] = sorted(each for each in folders if each not in _SKIPPED)
        inside = COMMITS in Path(root).parts
        if inside == commits:
            for name in sorted(names):
                if not name.endswith(_TEMPORARY):
                    yield str((Path(root) / name).relative_to(data_dir))


def _copy_if_there(
    data_dir: Path, target: Path, name: str, files: dict[str, BackupFile], progress: Progress
) -> None:
    source = data_dir / name
    try:
        stat = source.stat()
        files[name] = copy(
            source, target / name, bytes_max=stat.st_size, mode=stat.st_mode & 0o777,
            progress=progress,
        )  # fmt: skip
    except FileNotFoundError:
        return  # Spark removes what it needs no more


def _restored_when(name: str) -> tuple[int, str]:
    """Where in the order of a restore."""
    folder, _, rest = name.partition("/")
    if rest != f"{LOG}/{FORMAT_FILE}":
        return 0, name
    return (2 if folder == NODE else 1), name


def bring_back(source: Path, data_dir: Path, progress: Progress) -> Manifest:
    manifest = load(source)
    if data_dir.exists() and any(data_dir.iterdir()):
        raise AlreadyExistsError(f"{data_dir} is not empty; restore into a new directory")
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in sorted(manifest.files, key=_restored_when):
        kept = manifest.files[name]
        try:
            found = copy(
                source / name, data_dir / name, bytes_max=kept.bytes + 1, mode=kept.mode,
                progress=progress,
            )  # fmt: skip
        except FileNotFoundError as error:
            raise CorruptionError("the backup lacks a file", path=str(source / name)) from error
        if (found.bytes, found.crc32c) != (kept.bytes, kept.crc32c):
            raise CorruptionError(
                f"a file of the backup is not what {MANIFEST} says; restore another backup into "
                "another directory",
                path=str(source / name),
            )
    for folder in {data_dir, *((data_dir / name).parent for name in manifest.files)}:
        sync_folder(folder)
    return manifest
