"""`make quick` runs what concerns a change, and is never without tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import quick


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    folder = tmp_path / "tests/unit"
    for name in ("storage/journal", "storage/range", "datanode/append"):
        (folder / name).mkdir(parents=True)
    return folder


def chosen(unit: Path, *changed: str) -> list[str]:
    names = {name.removeprefix("tests/unit/") for name in quick.unit_tests(changed, unit)}
    return sorted(names.difference(quick.ALWAYS))


def test_without_a_change_the_fast_ones_run(unit: Path) -> None:
    assert quick.unit_tests([], unit) == sorted(f"tests/unit/{name}" for name in quick.ALWAYS)
    for name in quick.ALWAYS:
        assert (quick.UNIT / name).exists()


def test_tests_lie_where_the_module_lies(unit: Path) -> None:
    assert chosen(unit, "src/headrace/storage/journal/writer.py") == ["storage/journal"]
    assert chosen(unit, "src/headrace/storage/store.py") == ["storage"]
    assert chosen(unit, "src/headrace/storage/nowhere/new.py") == ["storage"]


def test_a_folder_takes_in_what_is_below_it(unit: Path) -> None:
    changed = ["src/headrace/storage/range/log.py", "src/headrace/storage/store.py"]
    assert chosen(unit, *changed) == ["storage"]
    assert chosen(unit, "src/headrace/datanode/append/requests.py") == []  # always run


def test_a_test_that_changed_is_run_and_what_a_helper_serves(unit: Path) -> None:
    assert chosen(unit, "tests/unit/storage/range/test_log.py") == ["storage/range/test_log.py"]
    assert chosen(unit, "tests/unit/storage/support.py") == ["storage"]


@pytest.mark.parametrize(
    "name",
    [
        "docs/index.md",
        "src/headrace/errors.py",
        "src/headrace/lone/new.py",
        "tests/unit/conftest.py",
    ],
)
def test_what_has_no_tests_of_its_own_asks_for_none(unit: Path, name: str) -> None:
    assert chosen(unit, name) == []


def test_types_are_checked_where_mypy_looks() -> None:
    changed = ["src/headrace/a.py", "tests/peers/b.py", "docs/c.md", "examples/d.py", "tests/e.py",
               "src/headrace/wire/umbilical/_generated/f.py"]  # fmt: skip
    assert quick.typed_files(changed) == ["src/headrace/a.py", "tests/e.py"]


def test_all_commands_of_a_lane_are_run_and_one_failure_is_the_lanes() -> None:
    passed, said = quick.run_lane([["false"], ["sh", "-c", "echo wrong; exit 3"], ["echo", "fine"]])
    assert not passed
    assert said == "wrong\n"
    assert quick.run_lane([["true"]]) == (True, "")
