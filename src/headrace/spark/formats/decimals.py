"""Decimals out of text: only such as may be meant.

Arrow's own conversion ends the process for a number like 1e-999999999, and Python's takes minutes
for one of a million digits. The decimals of a column have at most 38 digits; what is far beyond
that is refused before either sees it.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.formats.decoding import UnreadableError

DIGITS_MAX = 100

_PLAIN = (
    rf"^\s*[+-]?([0-9]{{1,{DIGITS_MAX}}}(\.[0-9]{{0,{DIGITS_MAX}}})?|\.[0-9]{{1,{DIGITS_MAX}}})"
    r"([eE][+-]?[0-9]{1,2})?\s*$"
)


def check_decimals(texts: pa.Array | pa.ChunkedArray, name: str) -> None:
    """UnreadableError for texts that Arrow must not be asked to convert; others have no texts."""
    kind = texts.type
    if pa.types.is_dictionary(kind):
        for chunk in texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]:
            check_decimals(chunk.dictionary, name)
        return
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        fits = pc.match_substring_regex(texts.cast(pa.string()), _PLAIN)
        if not pc.all(fits, min_count=0).as_py():
            raise UnreadableError(f"{name}: not a decimal")


def parse_decimal(value: Any) -> Decimal:
    """ValueError for one that no column could hold."""
    text = str(value)
    if len(text) > 2 * DIGITS_MAX:
        raise ValueError("a decimal of too many digits")
    found = Decimal(text)
    if not found.is_finite() or abs(found.adjusted()) > DIGITS_MAX:
        raise ValueError("a decimal of too many digits")
    if abs(int(found.as_tuple().exponent)) > DIGITS_MAX:
        raise ValueError("a decimal of too many digits")
    return found
