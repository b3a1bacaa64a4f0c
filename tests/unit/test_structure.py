"""`tests/structure.py` finds what it is there for, on small trees made up for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import structure

PARAGRAPH = '"""' + "One of the words that say what the package is for. " * 3 + '"""\n'


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below `root`, and an opening paragraph for each package that has none."""
    for folder in ("src/headrace", "tests", "benchmarks", "examples", "docs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if name.startswith("src/"):
            opening = path.parent / "__init__.py"
            opening.exists() or opening.write_text(PARAGRAPH)
    return root


def complaints(root: Path) -> list[str]:
    return structure.complaints_of(root)[0]


def test_a_tree_in_order_has_nothing_to_complain_about(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "src/headrace/wire/frames.py": '"""Frames; `codec.py` fills them."""\n',
            "src/headrace/wire/codec.py": "import headrace.wire.frames\n# See wire/frames.py.\n",
            "docs/page.md": "Framing is in `wire/frames.py`.\n```python\nimport nowhere.py\n```\n",
        },
    )
    found, size = structure.complaints_of(root)
    assert found == []
    assert size.startswith("3 modules, 4 lines in 1 folders")


def test_a_folder_with_too_many_modules(tmp_path: Path) -> None:
    names = [f"src/headrace/wire/part_{number}.py" for number in range(25)]
    root = tree(tmp_path, dict.fromkeys(names, ""))
    assert complaints(root) == ["folder: headrace/wire has 26 modules, more than 25"]
    (root / names[0]).unlink()
    assert structure.complaints_of(root) == ([], structure.complaints_of(root)[1])
    assert structure.complaints_of(root)[1].endswith("with 25 modules, 1 have over 20")


@pytest.mark.parametrize(
    "back",
    [
        "import headrace.wire.frames\n",
        "from headrace.wire.frames import Frame\n",
        "from headrace.wire import frames\n",
        "def lazy():\n    from headrace.wire import frames\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import headrace.wire.frames\n",
    ],
)
def test_modules_that_import_each_other(tmp_path: Path, back: str) -> None:
    root = tree(
        tmp_path,
        {
            "src/headrace/wire/frames.py": "from headrace.wire import codec, limits\n",
            "src/headrace/wire/codec.py": "from headrace.wire import bodies\n",
            "src/headrace/wire/bodies.py": back,
            "src/headrace/wire/limits.py": "",
        },
    )
    found = complaints(root)
    assert [each.split()[1] for each in found] == [
        "headrace.wire.bodies",
        "headrace.wire.codec",
        "headrace.wire.frames",
    ]
    assert "limits" not in "".join(found)


def test_two_cycles_are_two(tmp_path: Path) -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a"}}
    found = structure.import_cycles({name: frozenset(to) for name, to in graph.items()})
    assert sorted(found) == [["a", "b"], ["c", "d"]]


def test_a_package_without_an_opening_paragraph(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "src/headrace/wire/__init__.py": '"""Frames."""\n',
            "src/headrace/wire/frames.py": "",
            "src/headrace/lone/__init__.py": '"""A module in a folder is no room."""\n',
            "src/headrace/wire/_generated/__init__.py": "",
            "src/headrace/wire/_generated/made.py": "import headrace.wire\n",
        },
    )
    assert [each.split()[1] for each in complaints(root)] == ["headrace.wire"]


def test_a_file_that_is_named_and_does_not_exist(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "src/headrace/wire/frames.py": '"""Uses `gone.py` and net/server.py."""\n',
            "src/headrace/net/server.py": "x = 'left.py'  # not frames.py, nor wire/lost.py\n",
            "tests/unit/test_frames.py": "",
            "docs/page.md": "`wire/frames.py`, `frames.py`, `test_frames.py`,"
            " `unit/test_frames.py`, `nowhere/frames.py`, your `shop.py`, test_*.py\n",
        },
    )
    found = [each.removeprefix("file: ") for each in complaints(root)]
    assert sorted(each.removesuffix(", which does not exist") for each in found) == [
        "docs/page.md names nowhere/frames.py",
        "src/headrace/net/server.py names frames.py",  # another package's needs its folder
        "src/headrace/net/server.py names wire/lost.py",
        "src/headrace/wire/frames.py names gone.py",
    ]


def test_unit_tests_lie_where_their_module_lies(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "src/headrace/wire/frames.py": "",
            "tests/unit/test_whole.py": "",
            "tests/unit/wire/test_frames.py": "",
            "tests/unit/codec/sbp/test_frames.py": "",
        },
    )
    wanted = "tests: tests/unit/codec/sbp has unit tests of a package that does not exist"
    assert complaints(root) == [wanted]
    assert structure.key_of(wanted) == "tests: tests/unit/codec/sbp"


def test_the_list_of_what_is_put_up_with() -> None:
    found = [
        "cycle: headrace.wire.iggy.codec and headrace.wire.frames reach each other by imports",
        "paragraph: headrace.net opens with 2 words, 25 are needed",
        "file: src/headrace/wire/frames.py names gone.py, which does not exist",
        "file: docs/page.md names gone.py, which does not exist",
    ]
    assert [structure.key_of(each) for each in found] == [
        "cycle: headrace.wire",
        "paragraph: headrace.net",
        "file: src/headrace/wire",
        "file: docs/page.md",
    ]
    still = frozenset({"cycle: headrace.wire", "cycle: headrace.net"})
    assert structure.judge(found, still) == (found[1:], ["cycle: headrace.net"])
