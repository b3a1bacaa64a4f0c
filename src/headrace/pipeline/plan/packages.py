"""Deployed code: an immutable folder named by the hash of its content.

    <application path>/packages/<hash>/...files...
    <application path>/packages/<hash>/.manifest      paths, written last: none, no package

The hash is SHA-256 over every file's path and bytes in the order of the paths, lengths included. A
container is launched only after the files have been hashed again: a restart runs what was
submitted, never an edited file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from headrace.errors import CorruptionError, InvalidArgumentError, NotFoundError, TooLargeError
from headrace.runtime.interfaces import Disk

MANIFEST = ".manifest"
FILES_MAX = 2_000
PATH_CHARACTERS_MAX = 255


class Package(Protocol):
    """What is submitted: the files of a project and which of them to run."""

    @property
    def entry(self) -> str: ...

    @property
    def files(self) -> Mapping[str, bytes]: ...

    @property
    def name(self) -> str:
        """Of the application; empty = what its plan says."""

    @property
    def available_now(self) -> bool:
        """Read what is there, then end."""


@dataclass(frozen=True, slots=True)
class PackageSpec:
    entry: str
    files: Mapping[str, bytes] = field(repr=False)
    name: str = ""
    available_now: bool = False
    plan: Mapping[str, Any] | None = None  # None: the script is asked in a process of its own


def check_files(entry: str, files: Mapping[str, bytes], *, bytes_max: int) -> None:
    if len(files) > FILES_MAX:
        raise TooLargeError(f"a package holds at most {FILES_MAX} files", files=len(files))
    if sum(map(len, files.values())) > bytes_max:
        raise TooLargeError(f"a package is at most {bytes_max} bytes")
    for path in files:
        parts = PurePosixPath(path).parts
        if (
            not parts
            or path != "/".join(parts)  # no "//", "/./", leading or trailing "/"
            or path == MANIFEST
            or ".." in parts
            or len(path) > PATH_CHARACTERS_MAX
            or any(ord(character) < 32 or character == "\\" for character in path)
        ):
            raise InvalidArgumentError("not a path inside a package", path=path)
    if entry.partition(":")[0] not in files:
        raise InvalidArgumentError("the entry is not among the files", entry=entry)


def content_hash(files: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path in sorted(files):
        name = path.encode()
        digest.update(len(name).to_bytes(8, "big") + name)
        digest.update(len(files[path]).to_bytes(8, "big") + files[path])
    return digest.hexdigest()


def install(disk: Disk, folder: str, files: Mapping[str, bytes]) -> None:
    """Write the files, then the manifest. Blocks. A complete package is left as it is."""
    if disk.exists(f"{folder}/{MANIFEST}"):
        return
    disk.remove_tree(folder)  # a part that an earlier stop left behind
    disk.make_folder(folder)
    for path in sorted(files):
        parent = str(PurePosixPath(folder, path).parent)
        disk.make_folder(parent)
        disk.write_atomic(f"{folder}/{path}", files[path])
    disk.write_atomic(f"{folder}/{MANIFEST}", json.dumps(sorted(files)).encode())


def verify(disk: Disk, folder: str, expected: str) -> None:
    """CorruptionError when the folder does not hold what was submitted. Blocks."""
    try:
        paths = json.loads(disk.read(f"{folder}/{MANIFEST}"))
        found = content_hash({path: disk.read(f"{folder}/{path}") for path in paths})
    except (NotFoundError, ValueError, TypeError, AttributeError) as error:
        raise CorruptionError(
            f"the deployed package is incomplete: {error}", folder=folder
        ) from error
    if found != expected:
        raise CorruptionError("the deployed package was changed", expected=expected, found=found)
