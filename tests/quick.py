"""The fast loop: `make quick` runs `python -m tests.quick`, and is done within a minute.

It looks at what changed since the branch left main (uncommitted and new files included, `BASE=`
names another commit). Lint, layers and structure are checked whole, types of the files that
changed, and unit tests of the packages that changed, with a fixed set of fast ones. A branch that
touches most packages takes longer; `BASE=HEAD` looks at what is not committed alone. `make check`
and `make test` stay what a change must pass.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "tests/unit"

ALWAYS = (
    "client", "config", "datanode", "observability", "pipeline", "placement", "process",
    "sbp_client", "test_makefile.py", "test_quick.py", "test_structure.py",
)  # fmt: skip
"""Below tests/unit: 1,700 tests that take some ten seconds in all."""

TYPED = ("src/", "tests/", "benchmarks/")
UNTYPED = ("tests/peers/", "_generated")  # as in pyproject.toml


def changed_files(base: str) -> list[str]:
    """List files that differ from where this branch left `base`, committed or not."""
    since = _git("merge-base", "HEAD", base) or ["HEAD"]
    named = _git("diff", "--name-only", "--diff-filter=d", since[0])
    return sorted({*named, *_git("ls-files", "--others", "--exclude-standard")})


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.split() if done.returncode == 0 else []


def typed_files(changed: Iterable[str]) -> list[str]:
    return [
        name
        for name in changed
        if name.endswith(".py")
        and name.startswith(TYPED)
        and not any(part in name for part in UNTYPED)
    ]


def unit_tests(changed: Iterable[str], unit: Path = UNIT) -> list[str]:
    """Choose unit tests: those that changed, those that lie where a changed module lies, `ALWAYS`.

    `src/headrace/storage/journal/writer.py` asks for `tests/unit/storage/journal`; where there is
    no such folder, for the nearest one above it.
    """
    chosen = {unit / name for name in ALWAYS}
    for name in changed:
        parts = Path(name).parts
        if parts[:2] == ("src", "headrace") and len(parts) > 3:
            folder = unit.joinpath(*parts[2:-1])
            while not folder.is_dir():
                folder = folder.parent
            if folder != unit:
                chosen.add(folder)
        elif parts[:2] == ("tests", "unit") and len(parts) > 2:
            path = unit.joinpath(*parts[2:])
            chosen.add(path if path.name.startswith("test_") else path.parent)
    chosen.discard(unit)
    kept = [path for path in sorted(chosen) if not chosen.intersection(path.parents)]
    return [str(path.relative_to(unit.parents[1])) for path in kept]


def commands(changed: Sequence[str]) -> tuple[list[list[str]], list[list[str]]]:
    """Make two lanes of commands, of which each keeps one core busy."""
    bin_ = Path(sys.executable).parent
    code = ["src", "tests", "benchmarks", "examples"]
    looking = [
        [f"{bin_}/ruff", "format", "--check", "--quiet", *code],
        [f"{bin_}/ruff", "check", "--quiet", *code],
        [f"{bin_}/lint-imports"],
        [sys.executable, "-m", "tests.structure"],
    ]
    typed = typed_files(changed)
    if typed:
        looking.append([f"{bin_}/mypy", *typed])
    testing = [[sys.executable, "-m", "pytest", "-q", "--no-header", *unit_tests(changed)]]
    return looking, testing


def run_lane(lane: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Run commands one after the other, all of them; say whether all passed, and what they said."""
    passed, said = True, ""
    for command in lane:
        done = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False,
        )  # fmt: skip
        passed = passed and done.returncode == 0
        if done.returncode:
            said += done.stdout
        elif command[0] == sys.executable:  # the linters have nothing to tell
            said += "".join(done.stdout.splitlines(keepends=True)[-3:])
    return passed, said


def main() -> int:
    begun = monotonic()
    changed = changed_files(os.environ.get("BASE", "main"))
    looking, testing = commands(changed)
    print(f"{len(changed)} files changed; unit tests: {' '.join(testing[0][5:])}", flush=True)
    with ThreadPoolExecutor(2) as threads:
        passed = True
        for lane_passed, said in threads.map(run_lane, (looking, testing)):
            print(said, end="", flush=True)
            passed = passed and lane_passed
    print(f"make quick took {monotonic() - begun:.0f} s: {'passed' if passed else 'FAILED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
