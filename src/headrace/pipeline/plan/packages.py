"""Deployed code: packages of files, and the environments that their requirements become.

    <application path>/packages/<hash>/...files...
    <application path>/packages/<hash>/.manifest      paths, written last: none, no package
    <application path>/packages/<hash>/.environment   where the package's environment is
    <environments>/<hash of Python, machine and requirements>/...installed...
    <environments>/<hash>/.complete                   written last: none, no environment

A package is immutable. Its hash is SHA-256 over every file's path and bytes in the order of the
paths, lengths included. A container is launched only after the files have been hashed again: a
restart runs what was submitted, never an edited file.

Requirements are locked, so that a restart in a year installs the same bytes: every line names one
version and the hashes of its files, and none says where to download from. pip runs in a process of
its own and takes only wheels with these hashes. Packages with the same requirements share one
environment, a folder on the path of driver and executors.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol

from headrace.errors import (
    CorruptionError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    TooLargeError,
)
from headrace.runtime.interfaces import Disk, Runtime

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


FILES = ("requirements.lock", "requirements.txt")  # the first that a package has

_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._ -]+\])? ?==[^*\s;]+(\s*;.*)?\Z")
_FILE = re.compile(r"\./[^\s]+\.whl\Z")  # a wheel that travels in the package
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}\Z")


def locked_requirements(files: Mapping[str, bytes]) -> tuple[str, bytes] | None:
    """(path, content) of a package's requirements; None when it needs none.

    InvalidArgumentError names the first line that is not locked.
    """
    path = next((name for name in FILES if name in files), None)
    if path is None:
        return None
    lines = list(_requirements(files[path].decode("utf-8", "replace")))
    for line in lines:
        _check(path, line, files)
    return (path, files[path]) if lines else None


def _requirements(text: str) -> Iterator[str]:
    """Logical lines: continued ones joined, comments and empty ones left out."""
    for line in text.replace("\\\n", " ").splitlines():
        content = re.sub(r"(^|\s)#.*", "", line).strip()
        if content:
            yield content


def _check(path: str, line: str, files: Mapping[str, bytes]) -> None:
    hashes = [word for word in line.split() if word.startswith("--hash")]
    requirement = " ".join(word for word in line.split() if not word.startswith("--hash"))
    if requirement.startswith("-") or "://" in requirement:
        fix = "take options and addresses out; pip's own settings say where to download from"
    elif _FILE.fullmatch(requirement):
        if requirement.removeprefix("./") in files:
            fix = "" if hashes else "add its --hash=sha256:..."
        else:
            fix = "there is no such file in the package"
    elif not _PINNED.fullmatch(requirement):
        fix = "name one version, like polars==1.2.3"
    else:
        fix = "" if hashes else "add its --hash=sha256:... (pip-compile --generate-hashes does)"
    if not fix and not all(_HASH.fullmatch(one) for one in hashes):
        fix = "a hash is written --hash=sha256: and 64 hexadecimal digits"
    if fix:
        raise InvalidArgumentError(f"{path} is not locked: {requirement[:100]!r}: {fix}")


POINTER = ".environment"
COMPLETE = ".complete"
LOG_TAIL_BYTES = 2_048


def environment_of(disk: Disk, package_folder: str) -> str:
    """The folder of a package's requirements, "" for none. Blocks."""
    try:
        return disk.read(f"{package_folder}/{POINTER}").decode()
    except NotFoundError:
        return ""


def python_path(disk: Disk, package_folder: str) -> str:
    """What a process that runs the package's code has on its path. Blocks."""
    environment = environment_of(disk, package_folder)
    return f"{package_folder}:{environment}" if environment else package_folder


def environment_name(requirements: bytes) -> str:
    digest = hashlib.sha256(requirements)
    digest.update(f"{sys.implementation.cache_tag} {platform.machine()}".encode())
    return digest.hexdigest()


async def prepare_environment(
    runtime: Runtime,
    files: Mapping[str, bytes],
    package_folder: str,
    folder: str,
    *,
    variables: Mapping[str, str],
    timeout: float,
) -> None:
    """Install what an installed package needs, unless that is there, and say where it is.

    InvalidArgumentError with pip's own words when it cannot be installed.
    """
    locked = locked_requirements(files)
    if locked is None:
        return
    path, content = locked
    disk, executor = runtime.disk, runtime.executor("environment", 1)
    target = f"{folder}/{environment_name(content)}"
    try:
        if not await executor.run(disk.exists, f"{target}/{COMPLETE}"):
            await executor.run(disk.remove_tree, target)  # a part that an earlier stop left behind
            await executor.run(disk.make_folder, target)
            log = f"{folder}/{environment_name(content)}.log"
            status = await _install(
                runtime, path, package_folder, target, log, variables=variables, timeout=timeout
            )
            if status != 0:
                tail = (await executor.run(disk.read, log))[-LOG_TAIL_BYTES:]
                text = tail.decode("utf-8", "replace").strip()
                raise InvalidArgumentError(f"{path} cannot be installed: {text}")
            await executor.run(disk.write_atomic, f"{target}/{COMPLETE}", b"")
        await executor.run(disk.write_atomic, f"{package_folder}/{POINTER}", target.encode())
    finally:
        executor.close()


async def _install(
    runtime: Runtime,
    requirements: str,
    package_folder: str,
    target: str,
    log: str,
    *,
    variables: Mapping[str, str],
    timeout: float,
) -> int:
    command = (
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install"),
        *("--quiet", "--require-hashes", "--no-deps", "--only-binary", ":all:"),
        *("--target", target, "--requirement", f"{package_folder}/{requirements}"),
    )
    process = await runtime.processes.spawn(
        command,
        environment=variables,
        folder=package_folder,  # where `./wheels/x.whl` is looked for
        output=log,
    )
    try:
        async with asyncio.timeout(timeout):
            return await process.wait()
    except TimeoutError:
        raise DeadlineError(f"{requirements} was not installed in time", seconds=timeout) from None
    finally:
        if process.exit_status is None:
            process.kill()
            await process.wait()
