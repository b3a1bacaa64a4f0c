"""Ordinary PySpark scripts under supervision: what they are, and the plan they amount to.

A script is read, not run, to find the queries it starts: every `….writeStream….start()` (or
`toTable`) is an operator, named by its `queryName` or by its place. At run time queries are matched
by name, those without one in the order in which they start; what the text did not tell (queries
started in a loop or in another module) is reported with the first operator.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from headrace.errors import ConfigError

RUN_SCRIPT = "headrace.pipeline.plan.scripts:run"  # `class` of a script's queries in the plan
_STARTS = frozenset({"start", "toTable"})
_DECLARES = frozenset({"Application", "Dag"})


def is_script(text: str) -> bool:
    """Whether a file is a PySpark program of its own, and declares no application."""
    tree = _parse(text)
    imports = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "headrace"
        for alias in node.names
    }
    named = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "headrace"
    }
    if (imports | named) & _DECLARES:
        return False
    # Starting a session or a query is what makes it one: an import may be there for its types.
    return any(
        isinstance(node, ast.Attribute)
        and (node.attr == "writeStream" or (node.attr == "builder" and _is_session(node.value)))
        for node in ast.walk(tree)
    )


def _is_session(node: ast.AST) -> bool:
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    return name == "SparkSession"


def query_names(text: str) -> tuple[str, ...]:
    """Of the queries that the script's text starts, in order; never empty."""
    return unique_names(_started(_parse(text)))


def unique_names(given: Sequence[str | None]) -> tuple[str, ...]:
    """The operator of each query: its own name, or `query_1`, `query_2` for those without."""
    names: list[str] = []
    unnamed = 0
    for name in given:
        if name is None:
            unnamed += 1
        operator = operator_name(name if name is not None else unnamed_query(unnamed))
        if operator not in names:  # one name twice is one query, started again
            names.append(operator)
    return tuple(names) or (unnamed_query(1),)


def operator_name(query: str) -> str:
    """A query's name may hold anything, an operator's only what a folder's may."""
    return re.sub(r"[^A-Za-z0-9_.-]", "_", query).lstrip(".-")[:100] or unnamed_query(1)


def unnamed_query(number: int) -> str:
    return f"query_{number}"


def script_plan(entry: str, text: str) -> dict[str, Any]:
    """One operator per query, all in one container."""
    stem = entry.rpartition("/")[2].removesuffix(".py")
    return {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "-", stem),
        "attributes": {"APPLICATION_NAME": stem},
        "operators": [
            {
                "name": name,
                "class": RUN_SCRIPT,
                "properties": {"script": entry},
                "attributes": {},
                "ports": [],
                "isolate": False,
                "instances": 1,
            }
            for name in query_names(text)
        ],
        "streams": [],
        "topics": [],
        "outputs": [{"operator": name} for name in query_names(text)],
    }


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise ConfigError(f"SyntaxError: {error.msg} (line {error.lineno})") from error


def _started(tree: ast.Module) -> list[str | None]:
    writers: dict[str, list[ast.AST]] = {}
    found: list[tuple[int, int, str | None]] = []
    for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            chain = list(_chain(node.value, writers))
            if _writes(chain):
                writers[node.targets[0].id] = chain
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _STARTS
        ):
            chain = [node, *_chain(node.func.value, writers)]
            if _writes(chain):
                found.append((node.end_lineno or 0, node.end_col_offset or 0, _name(chain)))
    return [name for *_, name in sorted(found, key=lambda each: each[:2])]


def _chain(node: ast.AST, writers: dict[str, list[ast.AST]]) -> Iterator[ast.AST]:
    """The calls and attributes of `a.b(…).c`, outermost first, through variables of the script."""
    while True:
        yield node
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, ast.Attribute):
            node = node.value
        else:
            break
    if isinstance(node, ast.Name):
        yield from writers.get(node.id, ())


def _writes(chain: list[ast.AST]) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr == "writeStream" for node in chain)


def _name(chain: list[ast.AST]) -> str | None:
    for node in chain:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "queryName" and node.args and isinstance(node.args[0], ast.Constant):
            return str(node.args[0].value)
        for keyword in node.keywords:
            if keyword.arg == "queryName" and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    return None
