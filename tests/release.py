"""What a release needs: `make release`.

Builds the sdist and the wheel into `dist/`, the wheel from the sdist, so that nothing is in it that
the sdist lacks. Installs the wheel with its pinned requirements into an empty environment for each
Python, asks it for its version and for what `headrace doctor` finds, and runs the demonstration.
Only then are the checksums written. Exit 0 means: this may be uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def run(*command: object, cwd: Path = ROOT) -> None:
    print("$", *command, flush=True)
    subprocess.run([str(part) for part in command], cwd=cwd, check=True)


def build(target: Path) -> Path:
    """The wheel; the sdist beside it."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    backend = (
        "import sys; from setuptools import build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
    )
    run(sys.executable, "-c", backend, "build_sdist", target)
    (sdist,) = target.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        run(sys.executable, "-c", backend, "build_wheel", target, cwd=unpacked)
    (wheel,) = target.glob("*.whl")
    return wheel


def find_pythons(wanted: Sequence[str]) -> dict[str, str]:
    """Their programs by version. One that is missing is told before anything is built."""
    found: dict[str, str] = {}
    for version in wanted:
        program = shutil.which(f"python{version}")
        tried = program and subprocess.run([program, "-c", ""], capture_output=True).returncode
        if program is None or tried:
            raise SystemExit(
                f"release: there is no python{version} here; install it, or name those to try:"
                " make release PYTHONS='3.11 3.12'"
            )
        found[version] = program
    return found


def try_wheel(wheel: Path, python: str, folder: Path, *, demo: bool) -> None:
    """In an environment of its own, away from this tree."""
    environment = folder / "venv"
    run(python, "-m", "venv", environment)
    inside = environment / "bin/python"
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "--require-hashes", "-r", ROOT / "requirements/run.txt")
    run(*pip, "--no-deps", wheel)
    program = environment / "bin/headrace"
    run(program, "--version", cwd=folder)
    run(program, "doctor", "--data-dir", folder / "data", cwd=folder)
    if demo:
        run(program, "demo", cwd=folder)  # installs the Iggy client that it sends with


def write_checksums(target: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(target.glob("headrace-*"))
    ]
    (target / "SHA256SUMS").write_text("".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pythons", default=" ".join(PYTHONS), help="versions, by spaces")
    parser.add_argument("--target", type=Path, default=ROOT / "dist")
    parser.add_argument("--no-demo", action="store_true", help="install and ask only")
    given = parser.parse_args()
    pythons = find_pythons(given.pythons.split())
    os.environ.pop("PYTHONPATH", None)  # nothing of this tree but the wheel
    wheel = build(given.target)
    for version, python in pythons.items():
        with tempfile.TemporaryDirectory(prefix=f"headrace-{version}-") as folder:
            try_wheel(wheel, python, Path(folder), demo=not given.no_demo)
        print(f"Python {version}: works", flush=True)
    write_checksums(given.target)
    print(f"ready: {', '.join(path.name for path in sorted(given.target.iterdir()))}")


if __name__ == "__main__":
    main()
