"""The wheel as somebody installs it, and how it is made."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.page_commands import ROOT
from tests.release import build, find_pythons, write_checksums


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    build(folder)
    write_checksums(folder)
    return folder


def test_the_wheel_holds_what_the_program_reads(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src/headrace"
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names, sorted(wanted - names)[:5]
    assert not any(name.startswith("tests/") for name in names)


def test_the_sdist_builds_the_same_wheel(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "src/headrace/py.typed"} <= names


def test_checksums_are_those_of_the_files(dist: Path) -> None:
    lines = (dist / "SHA256SUMS").read_text().splitlines()
    assert len(lines) == 2
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest


def test_a_python_that_is_missing_is_told_first() -> None:
    assert find_pythons([f"{sys.version_info[0]}.{sys.version_info[1]}"])
    with pytest.raises(SystemExit, match=r"no python9\.9"):
        find_pythons(["9.9"])


@pytest.mark.soak  # installs Spark into an empty environment: minutes
@pytest.mark.timeout(1800)
def test_the_wheel_works_in_an_empty_environment(tmp_path: Path) -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    command = [sys.executable, "-m", "tests.release", "--pythons", version]
    done = subprocess.run(
        [*command, "--target", str(tmp_path / "dist")], cwd=ROOT, timeout=1700, check=False
    )
    assert done.returncode == 0
