"""Whether the columns of a frame fit those of a table that is there: said before anything is
written, with the column's name. Types are as Spark's and Delta's schemas in JSON have them.

A value is never changed to make it fit: a column is cast only where every value of it stays what it
is (`int` into `bigint`), and all else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Kind: TypeAlias = str | Mapping[str, Any]

_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)\Z")
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}
_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def refuse_twins(names: Iterable[str], place: str) -> None:
    """ConfigError for columns that differ in nothing but their letters' case."""
    seen: dict[str, str] = {}
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) is not name:
            raise ConfigError(f"{place}: columns {other} and {name} have one name for a table")


def refuse_kinds(fields: Iterable[Mapping[str, Any]], known: frozenset[str], place: str) -> None:
    """ConfigError for a type that a table of this sort has none for."""
    for field in fields:
        for kind in _leaves(field["type"]):
            if kind not in known and not _DECIMAL.match(kind):
                raise ConfigError(
                    f"{place}: column {field['name']} is {kind}, which such a table cannot hold; "
                    "cast it or leave it out"
                )


def _leaves(kind: Kind) -> Iterable[str]:
    if isinstance(kind, str):
        yield kind
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _leaves(field["type"])
    elif kind["type"] == "array":
        yield from _leaves(kind["elementType"])
    elif kind["type"] == "map":
        yield from _leaves(kind["keyType"])
        yield from _leaves(kind["valueType"])
    else:
        yield str(kind["type"])


def fit(
    fields: Iterable[Mapping[str, Any]],
    table: Iterable[Mapping[str, Any]],
    place: str,
    *,
    growing: bool = False,
) -> dict[str, str]:
    """The columns that must be cast, and the type that each is cast to; ConfigError.

    Columns of the table that the frame lacks become null, where they may. `growing`: a column that
    the table lacks is one more from now on.
    """
    held = {each["name"]: each for each in table}
    casts = {}
    given = set()
    for field in fields:
        name, found = field["name"], field["type"]
        given.add(name)
        if name not in held and growing:
            continue
        if name not in held:
            near = [each for each in held if each.lower() == name.lower()]
            raise ConfigError(
                f"{place}: the table has no column {name}"
                + (f" (but {near[0]})" if near else "")
                + "; add it to the table, or leave it out of the result"
            )
        wanted = held[name]["type"]
        if place_of := difference(found, wanted, name):
            if not widens(found, wanted):
                raise ConfigError(f"{place}: {place_of}; cast it, or change the table")
            casts[name] = _SQL.get(str(wanted), str(wanted))
    for name, each in held.items():
        if name not in given and not each.get("nullable", True):
            raise ConfigError(f"{place}: column {name} may not be null, and the result has none")
    return casts


def widens(found: Kind, wanted: Kind) -> bool:
    """Whether each value of one type is one of the other, which may be the same for decimals."""
    if not isinstance(found, str) or not isinstance(wanted, str):
        return False
    if wanted in _WIDER.get(found, ()):
        return True
    room = _DECIMAL.match(wanted)
    if room is None:
        return False
    before, after = int(room[1]) - int(room[2]), int(room[2])
    if found in _DIGITS:
        return before >= _DIGITS[found]
    decimal = _DECIMAL.match(found)
    return decimal is not None and (
        before >= int(decimal[1]) - int(decimal[2]) and after >= int(decimal[2])
    )


def difference(found: Kind, wanted: Kind, name: str) -> str:
    """Where the types differ, "" where they do not; whether a part may be null is left out."""
    if isinstance(found, str) or isinstance(wanted, str) or found["type"] != wanted["type"]:
        same = found == wanted
        return "" if same else f"column {name} is {_text(found)}, the table has {_text(wanted)}"
    if found["type"] == "struct":
        mine = {each["name"]: each["type"] for each in found["fields"]}
        theirs = {each["name"]: each["type"] for each in wanted["fields"]}
        for part in [*mine, *theirs]:
            if part not in mine or part not in theirs:
                whose = "the table" if part in mine else "the result"
                return f"{whose} has no {name}.{part}"
            if told := difference(mine[part], theirs[part], f"{name}.{part}"):
                return told
        return ""
    parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(found["type"], ())
    return next(filter(None, (difference(found[part], wanted[part], name) for part in parts)), "")


def cast(frame: DataFrame, casts: Mapping[str, str]) -> DataFrame:
    """The frame with these columns cast."""
    if not casts:
        return frame
    from pyspark.sql import functions as F

    columns = {name: F.col(f"`{name.replace('`', '``')}`") for name in frame.columns}
    return frame.select(
        *(
            (columns[name].cast(casts[name]) if name in casts else columns[name]).alias(name)
            for name in frame.columns
        )
    )


def _text(kind: Kind) -> str:
    return _SQL.get(kind, kind) if isinstance(kind, str) else str(kind["type"])
