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

A restore writes the log's `format.json` last: a directory that lacks this file is refused at start,
so that half a restore is not taken for a whole one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from headrace.cli.backup.manifest import (
    MANIFEST,
    Kept,
    Manifest,
    Progress,
    checked,
    copy,
    load,
    save,
    sync_folder,
)
from headrace.cli.backup.metadata import FILE, Metadata, records, signature
from headrace.errors import AlreadyExistsError, ConfigError, CorruptionError
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

LOG = "node/log"
SEEN = "node/metadata.json"  # newer than the metadata that is restored with it, perhaps
APPLICATIONS = "applications"
COMMITS = "commits"
STATE_PREFIX = "s/"  # of the names of streams that hold control state
OFFSETS = "s/offsets"  # may move: an offset that was stored points below what is there
TRIES_MAX = 200
_LINKS = ".backup-{pid}"
# Can be made again, or says only where somebody listened.
_SKIPPED = frozenset(("logs", ".environments", "__pycache__", "recovery"))
_TEMPORARY = (".headrace-tmp", ".tmp", ".crc.tmp")


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the data directory at the moment of the backup."""

    name: str
    source: Path
    bytes: int
    mode: int
    finished: bool = False
    """A segment that has a successor: nobody writes to it any more."""


@dataclass(frozen=True, slots=True)
class Taken:
    manifest: Manifest
    tries: int
    moved: bool
    """The state moved during every try; metadata and data may be a moment apart."""


def take(data_dir: Path, target: Path, *, link: bool, progress: Progress) -> Taken:
    if not (data_dir / LOG).is_dir() and not (data_dir / FILE).exists():
        raise ConfigError(f"{data_dir} is no data directory; name it with --data-dir")
    if target.exists() and any(target.iterdir()):
        raise AlreadyExistsError(f"{target} is not empty; give the backup a folder of its own")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    links = data_dir / _LINKS.format(pid=os.getpid())
    files: dict[str, Kept] = {}
    try:
        for name in _applications(data_dir, commits=True):
            _copy_if_there(data_dir, target, name, files, progress)
        found, metadata, tries, moved = _sweep(data_dir, links)
        for each in found:
            files[each.name] = _keep(each, target, progress, link=link)
        if metadata is not None:
            metadata.save(target)
            files[FILE] = Kept(*checked(target / FILE, progress))
        for name in _applications(data_dir, commits=False):
            _copy_if_there(data_dir, target, name, files, progress)
    finally:
        shutil.rmtree(links, ignore_errors=True)
    for folder in {target, *((target / name).parent for name in files)}:
        sync_folder(folder)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    manifest = Manifest(headrace=version("headrace"), created=created, files=files)
    save(target, manifest)
    return Taken(manifest, tries, moved)


def bytes_in(folder: Path) -> int:
    """About; for a progress bar."""
    return sum(_size(Path(root, name)) for root, _, names in os.walk(folder) for name in names)


# The moment ---------------------------------------------------------------------------------------


def _sweep(data_dir: Path, links: Path) -> tuple[list[Found], Metadata | None, int, bool]:
    for tries in range(1, TRIES_MAX + 1):
        shutil.rmtree(links, ignore_errors=True)
        links.mkdir(mode=0o700)
        before = signature(data_dir)
        metadata = Metadata.read(data_dir)
        streams = _control_streams(metadata, links)
        state = frozenset(each for each, name in streams.items() if name != OFFSETS)
        offsets = frozenset(each for each, name in streams.items() if name == OFFSETS)
        sizes = _sizes(data_dir, state)
        found = list(_pinned(data_dir, links, first=offsets))
        if _sizes(data_dir, state) == sizes and signature(data_dir) == before:
            return found, metadata, tries, False
    return found, metadata, TRIES_MAX, True


def _control_streams(metadata: Metadata | None, links: Path) -> dict[str, str]:
    """Folder and name of the streams that hold state; none where no placement manager is."""
    if metadata is None:
        return {}
    scratch = links / "metadata"
    metadata.save(scratch)
    streams, _ = records(scratch / FILE)
    shutil.rmtree(scratch)
    return {
        str(one.stream_id): one.name
        for one in streams.values()
        if one.name.startswith(STATE_PREFIX)
    }


def _sizes(data_dir: Path, streams: frozenset[str]) -> dict[str, int]:
    found = {}
    for stream in streams:
        for path in (data_dir / LOG / STREAMS / stream).glob(f"*/*{LOG_SUFFIX}"):
            found[str(path)] = _size(path)
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1


def _pinned(data_dir: Path, links: Path, *, first: frozenset[str]) -> Iterator[Found]:
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
    if name in (f"{LOG}/{LOCK}", f"{LOG}/{JOURNAL}", SEEN) or name.startswith(FILE):
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


def _pin(path: Path, link: Path, name: str, newest: int) -> Found | None:
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
    return Found(name, link, stat.st_size, stat.st_mode & 0o777, base is not None and base < newest)


# Copying ------------------------------------------------------------------------------------------


def _keep(one: Found, target: Path, progress: Progress, *, link: bool) -> Kept:
    place = target / one.name
    if link and one.finished:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            os.link(one.source, place)
        except OSError as error:
            raise ConfigError(f"cannot link {place}: {error.strerror}; leave --link out") from error
        return Kept(*checked(place, progress), one.mode)
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
    data_dir: Path, target: Path, name: str, files: dict[str, Kept], progress: Progress
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


def bring_back(source: Path, data_dir: Path, progress: Progress) -> Manifest:
    manifest = load(source)
    if data_dir.exists() and any(data_dir.iterdir()):
        raise AlreadyExistsError(f"{data_dir} is not empty; restore into a new directory")
    data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    last = f"{LOG}/{FORMAT_FILE}"
    for name in sorted(manifest.files, key=lambda each: (each == last, each)):
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
