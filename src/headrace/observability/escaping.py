"""Text of others, safe to show: names, errors and payloads may hold anything.

On a terminal and in a log of lines, a newline begins a line that nobody wrote, an escape sequence
moves the cursor, and a mark of direction turns a name around. Whatever is not printable is shown
as Python writes it (`\\n`, `\\x1b`, `\\u202e`).
"""

from __future__ import annotations

import sys

LINES = "\n\t"
"""To be kept where text of several lines is shown as such."""


def escape(text: str, keep: str = "") -> str:
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each in keep else each.encode("unicode_escape").decode()
        for each in text
    )


def note(text: str) -> None:
    """A message for the person at the terminal; never part of the result."""
    print(escape(text, LINES), file=sys.stderr)
