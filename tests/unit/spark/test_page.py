"""docs/spark.md names every option there is, and none that is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.spark.formats.options import PAYLOAD_FORMATS, VALUE_FORMATS
from headrace.spark.options import KAFKA_COLUMNS, SINK_OPTIONS, SOURCE_OPTIONS
from headrace.spark.sink.sink import SINK_COLUMNS
from headrace.wire.iggy.columns import COLUMNS

PAGE = (Path(__file__).parents[3] / "docs/spark.md").read_text()
READING, WRITING = PAGE.split("\n## Writing\n")
TLS = {"tls.enabled", "tls.ca", "tls.serverName"}


def first_cells(text: str, header: str) -> set[str]:
    """The names in the first column of the tables with this header."""
    found: set[str] = set()
    for table in re.findall(rf"^\| {header} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            found.update(re.findall(r"`([^`]+)`", row.split("|")[1]))
    assert found, f"no table of {header}"
    return found


@pytest.mark.parametrize("option", SOURCE_OPTIONS)
def test_options_of_the_source_are_documented(option: str) -> None:
    assert f"`{option}`" in READING


@pytest.mark.parametrize("option", SINK_OPTIONS)
def test_options_of_the_sink_are_documented(option: str) -> None:
    assert f"`{option}`" in WRITING or option in TLS


def test_the_tables_name_nothing_else() -> None:
    assert first_cells(READING, "Option") <= set(SOURCE_OPTIONS)
    assert first_cells(WRITING, "Option") <= set(SINK_OPTIONS) | {"tls.*"}
    assert first_cells(WRITING, "Column") == set(SINK_COLUMNS)
    assert first_cells(READING, "Format") == set(PAYLOAD_FORMATS) - {"binary", "string"}
    assert first_cells(WRITING, "`valueFormat`") == set(VALUE_FORMATS)


def test_columns_are_documented() -> None:
    flat = " ".join(READING.split())
    for names in (COLUMNS, KAFKA_COLUMNS):
        assert re.search(r" [^`]+, ".join(map(re.escape, names)), flat), names
