"""`make check` holds the shape of the source tree here: `python -m tests.structure`.

The check fails when a folder of `src/headrace` has too many modules, when modules import each other
in a circle (an import inside a function or for type checkers counts as well), when a package does
not open with a paragraph about itself, when a docstring, a comment or a page names a file that
does not exist, and when unit tests lie in a folder that the source does not have. It prints how
many modules and lines there are, so that growth is seen.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

FOLDER_MODULES_GOAL = 20
"""A folder with more modules is told, and may pass."""
FOLDER_MODULES_MAX = 25
"""A folder with more modules fails the check."""
PARAGRAPH_WORDS_MIN = 25
"""What comes in, what goes out, who owns what: one sentence cannot say it."""

STILL: frozenset[str] = frozenset()
"""Complaints that are put up with for now, by kind and package (`key_of`). The list may only
shrink: the check tells entries that nothing needs any more."""

OWN_FILES = frozenset({"app.py", "broken.py", "client.py", "folder/shop.py", "job.py",
                       "pipeline.py", "SCRIPT.py", "shop.py", "test_pipeline.py",
                       "your_pipeline.py"})  # fmt: skip
"""Names that pages and docstrings give to files of the reader."""

_GENERATED = "_generated"
_PATH = re.compile(r"(?<![\w/.*<{-])((?:\w[\w-]*/)*\w[\w-]*\.py)\b(?!\w)")
_FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)

Graph = Mapping[str, frozenset[str]]


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if _GENERATED not in path.parts)


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(source: Path) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in python_files(source)}


def folder_sizes(files: Iterable[Path]) -> dict[Path, int]:
    sizes: dict[Path, int] = {}
    for path in files:
        sizes[path.parent] = sizes.get(path.parent, 0) + 1
    return sizes


def crowded_folders(sizes: Mapping[Path, int], source: Path) -> Iterator[str]:
    for folder, count in sizes.items():
        if count > FOLDER_MODULES_MAX:
            where = folder.relative_to(source)
            yield f"folder: {where} has {count} modules, more than {FOLDER_MODULES_MAX}"


def import_graph(trees: Mapping[Path, ast.Module], source: Path) -> Graph:
    """Say which module imports which, wherever in the file the import stands."""
    names = {module_name(path, source): tree for path, tree in trees.items()}
    return {name: frozenset(_imported(tree, names) - {name}) for name, tree in names.items()}


def _imported(tree: ast.Module, known: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return found.intersection(known)


def import_cycles(graph: Graph) -> list[list[str]]:
    """Find the groups of modules that reach each other (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in order:
                visit(other)
            if other in stack:
                lowest[name] = min(lowest[name], lowest[other])
        if lowest[name] == order[name]:
            start = stack.index(name)
            group, stack[start:] = stack[start:], []
            if len(group) > 1:
                groups.append(sorted(group))

    for name in sorted(graph):
        if name not in order:
            visit(name)
    return groups


def cycle_complaints(graph: Graph) -> Iterator[str]:
    for group in import_cycles(graph):
        for name in group:
            back = sorted(graph[name].intersection(group))
            yield f"cycle: {name} and {', '.join(back)} reach each other by imports"


def packages_without_paragraph(trees: Mapping[Path, ast.Module], source: Path) -> Iterator[str]:
    for path, tree in trees.items():
        rooms = [*path.parent.glob("*.py"), *path.parent.glob("*/__init__.py")]
        if path.name != "__init__.py" or len(rooms) == 1:
            continue
        words = len((ast.get_docstring(tree) or "").split())
        if words < PARAGRAPH_WORDS_MIN:
            name = module_name(path, source)
            yield f"paragraph: {name} opens with {words} words, {PARAGRAPH_WORDS_MIN} are needed"


def prose_of(text: str, tree: ast.Module) -> str:
    """Take docstrings and comments out of a module, and leave its code behind."""
    texts = [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    if re.search(r"#.*\.py\b", text):  # reading tokens is slow, and few files need it
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join(texts)


def missing_files(prose: str, folders: Iterable[Path], names: frozenset[str]) -> list[str]:
    """List what a text calls a file and is none.

    A path is looked for in each of the folders. A bare name is one of `names`.
    """
    found = dict.fromkeys(_PATH.findall(prose))
    return [
        each
        for each in found
        if each not in names | OWN_FILES
        and not any((folder / each).is_file() for folder in folders)
    ]


def stale_mentions(root: Path, trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    source = root / "src"
    everywhere = [root, source, source / "headrace", root / "tests"]
    outside = [
        path for top in ("tests", "benchmarks", "examples") for path in python_files(root / top)
    ]
    tests = frozenset(path.name for path in outside)
    areas: dict[tuple[str, ...], set[str]] = {}
    for path in trees:
        areas.setdefault(path.relative_to(source).parts[:2], set()).add(path.name)
    for path, tree in trees.items():
        # A bare name is a neighbour's, in the same package of the first level, or a test's.
        names = frozenset(areas[path.relative_to(source).parts[:2]]) | tests
        prose = prose_of(path.read_text(), tree)
        above = [folder for folder in path.parents if source in folder.parents]
        for each in missing_files(prose, [*everywhere, *above], names):
            yield f"file: {path.relative_to(root)} names {each}, which does not exist"
    every = tests.union(*areas.values())
    for path in [*root.glob("*.md"), *sorted((root / "docs").rglob("*.md"))]:
        if path.name == "CHANGELOG.md":
            continue  # what was true then
        prose = _FENCE.sub("", path.read_text())
        for each in missing_files(prose, everywhere, every):
            yield f"file: {path.relative_to(root)} names {each}, which does not exist"


def homeless_tests(root: Path) -> Iterator[str]:
    """Unit tests lie where their module lies: each of their folders is one of the source, too."""
    unit = root / "tests/unit"
    for folder in sorted({path.parent for path in unit.rglob("test_*.py")}):
        if not (root / "src/headrace" / folder.relative_to(unit)).is_dir():
            where = folder.relative_to(root)
            yield f"tests: {where} has unit tests of a package that does not exist"


def key_of(complaint: str) -> str:
    """Shorten a complaint to its kind and to the page or the package of the first level."""
    kind, _, rest = complaint.partition(": ")
    where = rest.split()[0]
    if where.startswith("src/"):
        where = "/".join(where.split("/")[:3])
    elif kind in ("cycle", "paragraph"):
        where = ".".join(where.split(".")[:2])
    return f"{kind}: {where}"


def judge(complaints: Iterable[str], still: frozenset[str]) -> tuple[list[str], list[str]]:
    """Part what is wrong from the entries of `still` that nothing needs any more."""
    found = list(complaints)
    wrong = [each for each in found if key_of(each) not in still]
    return wrong, sorted(still.difference(map(key_of, found)))


def complaints_of(root: Path) -> tuple[list[str], str]:
    """Look at a whole tree: what is wrong with it, and its size in a sentence."""
    source = root / "src"
    trees = parse(source)
    sizes = folder_sizes(trees)
    complaints = [
        *crowded_folders(sizes, source),
        *cycle_complaints(import_graph(trees, source)),
        *packages_without_paragraph(trees, source),
        *stale_mentions(root, trees),
        *homeless_tests(root),
    ]
    everything = list(source.rglob("*.py"))  # what is generated, too
    lines = sum(path.read_text().count("\n") for path in everything)
    fullest = max(sizes, key=lambda folder: sizes[folder])
    crowded = sum(count > FOLDER_MODULES_GOAL for count in sizes.values())
    size = (
        f"{len(everything)} modules, {lines} lines in {len(sizes)} folders; the fullest is "
        f"{fullest.relative_to(source)} with {sizes[fullest]} modules, "
        f"{crowded} have over {FOLDER_MODULES_GOAL}"
    )
    return complaints, size


def main() -> int:
    complaints, size = complaints_of(ROOT)
    print(size)
    wrong, unneeded = judge(complaints, STILL)
    for complaint in wrong:
        print(complaint, file=sys.stderr)
    for entry in unneeded:
        print(f"{entry!r} is mended: take it off STILL in tests/structure.py")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
