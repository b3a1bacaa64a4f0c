"""What a package's locked requirements become: a folder for the path of driver and executors.

    <folder>/<hash of Python, machine and requirements>/...installed...
    <folder>/<hash>/.complete                      written last: none, no environment
    <package>/.environment                         where the package's environment is

Packages with the same requirements share one. pip runs in a process of its own and takes only
wheels with the hashes that the package names.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import sys
from collections.abc import Mapping

from headrace.errors import DeadlineError, InvalidArgumentError, NotFoundError
from headrace.pipeline.plan.requirements import locked_requirements
from headrace.runtime.interfaces import Disk, Runtime

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
