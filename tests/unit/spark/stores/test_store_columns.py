"""Which columns a table takes: what fits, what is cast without a loss, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.spark.stores.columns import fit, refuse_kinds, refuse_twins, widens
from headrace.spark.stores.postgres import TableColumn, _numeric, _takes


def field(name: str, kind: Any, *, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": {}}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_what_is_cast_keeps_every_value() -> None:
    table = [field("a", "long"), field("b", "double"), field("c", "decimal(12,2)")]
    frame = [field("a", "short"), field("b", "integer"), field("c", "decimal(10,2)")]
    assert fit(frame, table, "t") == {"a": "bigint", "b": "double", "c": "decimal(12,2)"}
    assert fit(table, table, "t") == {}
    assert fit([field("a", "long")], table, "t") == {}, "the others become null"
    assert fit([*table, field("new", "string")], table, "t", growing=True) == {}


@pytest.mark.parametrize(
    ("found", "wanted", "fits"),
    [
        ("long", "integer", False),
        ("long", "double", False),
        ("integer", "float", False),
        ("double", "float", False),
        ("string", "integer", False),
        ("long", "decimal(18,0)", False),
        ("long", "decimal(19,0)", True),
        ("decimal(10,2)", "decimal(10,3)", False),
        ("decimal(10,2)", "decimal(11,3)", True),
        ({"type": "array", "elementType": "integer"}, "long", False),
    ],
)
def test_what_could_lose_a_value_is_not_cast(found: Any, wanted: Any, fits: bool) -> None:
    assert widens(found, wanted) is fits


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (field("n", "long"), r"column n is bigint, the table has int;"),
        (field("m", "integer"), r"has no column m;"),
        (field("N", "integer"), r"has no column N \(but n\)"),
        (field("s", struct(field("x", "long"))), r"column s.x is bigint, the table has int"),
        (field("s", struct(field("y", "integer"))), r"the table has no s.y"),
        (field("s", struct()), r"the result has no s.x"),
        (field("l", {"type": "array", "elementType": "long"}), r"column l is bigint"),
        (field("l", "string"), r"column l is string, the table has array"),
        (
            field("d", {"type": "map", "keyType": "string", "valueType": "long"}),
            r"column d is bigint",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(frame: dict[str, Any], told: str) -> None:
    table = [
        field("n", "integer"),
        field("s", struct(field("x", "integer"))),
        field("l", {"type": "array", "elementType": "integer"}),
        field("d", {"type": "map", "keyType": "string", "valueType": "integer"}),
    ]
    with pytest.raises(ConfigError, match=rf"^shop: .*{told}"):
        fit([frame], table, "shop")


def test_a_column_that_may_not_be_null_must_be_there() -> None:
    table = [field("a", "long"), field("id", "string", nullable=False)]
    with pytest.raises(ConfigError, match="column id may not be null"):
        fit([field("a", "long")], table, "t")
    with pytest.raises(ConfigError, match="columns sku and SKU"):
        refuse_twins(["sku", "n", "SKU"], "t")
    nested = field("s", struct(field("x", {"type": "array", "elementType": "void"})))
    with pytest.raises(ConfigError, match="column s is void"):
        refuse_kinds([field("ok", "decimal(5,2)"), nested], frozenset({"string"}), "t")


@pytest.mark.parametrize(
    ("kind", "table", "modifier", "takes"),
    [
        ("long", "int4", -1, False),
        ("integer", "int8", -1, True),
        ("integer", "text", -1, False),
        ("string", "uuid", -1, True),
        ("string", "int4", -1, False),
        ("string", "timestamptz", -1, False),
        ("timestamp", "timestamp", -1, False),
        ("decimal(10,2)", "numeric", -1, True),
        ("decimal(10,2)", "numeric", (10 << 16 | 2) + 4, True),
        ("decimal(10,2)", "numeric", (9 << 16 | 2) + 4, False),
        ("double", "numeric", -1, False),
        ({"type": "map"}, "jsonb", -1, True),
        ({"type": "map"}, "text", -1, False),
    ],
)
def test_what_a_postgres_column_takes(kind: Any, table: str, modifier: int, takes: bool) -> None:
    column = TableColumn("c", table, "X", modifier, table, needed=False, computed=False)
    assert _takes(column, kind) is takes


def test_numeric_modifiers_are_unpacked() -> None:
    assert _numeric((38 << 16 | 18) + 4) == "decimal(38,18)"
    assert _numeric((5 << 16 | (-2 & 0x7FF)) + 4) == "decimal(5,-2)"
