"""Locked requirements on the path of what runs the package; pip is the real one."""

from __future__ import annotations

import hashlib
import os
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace.errors import InvalidArgumentError
from headrace.pipeline.plan.packages import (
    content_hash,
    environment_of,
    install,
    prepare_environment,
    python_path,
    verify,
)
from headrace.runtime.system import system_runtime

WHEEL = "own-1.0-py3-none-any.whl"


def make_wheel(folder: Path) -> bytes:
    path = folder / WHEEL
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("own.py", "ANSWER = 42\n")
        metadata = "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n"
        wheel.writestr("own-1.0.dist-info/METADATA", metadata)
        tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        wheel.writestr("own-1.0.dist-info/WHEEL", tags)
        wheel.writestr("own-1.0.dist-info/RECORD", "")
    return path.read_bytes()


async def prepared(files: Mapping[str, bytes], folder: Path) -> str:
    runtime = system_runtime()
    package = str(folder / content_hash(files))
    install(runtime.disk, package, files)
    await prepare_environment(
        runtime,
        files,
        package,
        str(folder / "environments"),
        variables=os.environ | {"PIP_NO_INDEX": "1"},
        timeout=60,
    )
    return package


async def test_what_is_locked_can_be_imported(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path)
    line = f"./wheels/{WHEEL} --hash=sha256:{hashlib.sha256(wheel).hexdigest()}\n"
    files = {
        "shop.py": b"from own import ANSWER\nprint(ANSWER)\n",
        "requirements.lock": line.encode(),
        f"wheels/{WHEEL}": wheel,
    }
    package = await prepared(files, tmp_path)
    disk = system_runtime().disk
    verify(disk, package, content_hash(files))  # the pointer is no part of what was submitted
    path = python_path(disk, package)
    assert path == f"{package}:{environment_of(disk, package)}"
    process = await system_runtime().processes.spawn(
        [sys.executable, f"{package}/shop.py"],
        environment={**os.environ, "PYTHONPATH": path},
        folder=package,
        output=str(tmp_path / "output"),
    )
    assert await process.wait() == 0
    assert (tmp_path / "output").read_text().strip() == "42"

    # Another version with the same requirements shares the folder: pip does not run again.
    again = await prepared(files | {"shop.py": b""}, tmp_path)
    assert environment_of(disk, again) == environment_of(disk, package)


async def test_other_bytes_than_the_locked_ones_are_refused(tmp_path: Path) -> None:
    files = {
        "requirements.lock": f"./{WHEEL} --hash=sha256:{'0' * 64}\n".encode(),
        WHEEL: make_wheel(tmp_path),
    }
    with pytest.raises(InvalidArgumentError, match="DO NOT MATCH THE HASHES"):
        await prepared(files, tmp_path)
    assert not list((tmp_path / "environments").glob("*/.complete"))


async def test_without_requirements_there_is_no_environment(tmp_path: Path) -> None:
    package = await prepared({"shop.py": b""}, tmp_path)
    assert python_path(system_runtime().disk, package) == package
