"""Window ids, as the umbilical has them (`headrace.wire.umbilical.windows`)."""

from __future__ import annotations

from headrace.wire.umbilical.windows import (
    NO_WINDOW,
    WINDOWS_PER_BASE,
    WindowGrid,
    format_window,
    parse_window,
)

__all__ = ["NO_WINDOW", "WINDOWS_PER_BASE", "WindowGrid", "format_window", "parse_window"]
