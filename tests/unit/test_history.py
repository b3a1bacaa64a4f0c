"""The checker of histories finds each defect that is put before it, and only that."""

from __future__ import annotations

import pytest

from tests.history import History

GOOD = [(0, b"a0"), (1, b"b0"), (2, b"a1"), (3, b"a3"), (4, b"b1")]


def history() -> History:
    """Two writers; a2 was never answered and may or may not be stored."""
    made = History()
    for writer, payload, offset in (
        ("a", b"a0", 0), ("b", b"b0", 1), ("a", b"a1", 2), ("a", b"a2", None), ("a", b"a3", 3),
        ("b", b"b1", 4),
    ):  # fmt: skip
        sent = made.send("s", writer, payload)
        if offset is not None:
            sent.on_acknowledged(offset)
    return made


def test_a_faultless_history() -> None:
    assert history().check({"s": GOOD}) == []
    assert history().acknowledged("s") == history().acknowledged() == 5
    assert history().acknowledged("other") == 0


def test_what_was_not_answered_may_be_stored() -> None:
    made = History()
    for payload in (b"0", b"1", b"2"):
        made.send("s", "w", payload)
    assert made.check({"s": [(0, b"0"), (1, b"2")]}) == []
    assert made.check({"s": []}) == []


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (GOOD[:-1], "acknowledged and lost: b'b1'"),
        ([*GOOD, (5, b"a1")], "stored more than once: b'a1'"),
        ([*GOOD, (5, b"x")], "stored but never sent: b'x'"),
        ([*GOOD[:2], (2, b"a3"), (3, b"a1"), GOOD[4]], "stored out of order: (3, b'a1')"),
        ([*GOOD[:2], (2, b"a3"), (3, b"a1"), GOOD[4]], "offset that holds something else"),
        ([*GOOD[:4], (5, b"b1")], "holes or steps back"),
        ([*GOOD, (5, b"a2")], "stored out of order: (5, b'a2')"),
    ],
)
def test_each_defect_is_found(stored: list[tuple[int, bytes]], said: str) -> None:
    found = history().check({"s": stored})
    assert any(said in violation for violation in found), found


def test_streams_that_are_missing_or_unknown_are_found() -> None:
    assert "lost" in history().check({})[0]
    assert "never sent" in history().check({"s": GOOD, "t": [(0, b"y")]})[0]
