"""Which dialect a connection speaks: a list of events and the dialect after each."""

from __future__ import annotations

import pytest

from headrace.wire.iggy.connection import Spoken
from headrace.wire.iggy.dialects import CLASSIC, Dialect

A, B1, B2 = Dialect.A, Dialect.B1, Dialect.B2
WITHOUT_FLAG, WITH_FLAG = frozenset((A,)), frozenset((B1, B2))
NARROW, WIDE = frozenset((A, B1)), frozenset((B2,))


@pytest.mark.parametrize("default", [A, B1, B2])
def test_nothing_shown_is_the_default(default: Dialect) -> None:
    spoken = Spoken(default)
    assert (spoken.dialect, spoken.known) == (default, False)
    spoken.on_silent_login(None)
    assert (spoken.dialect, spoken.known) == (default, False)


def test_a_version_settles_it() -> None:
    for dialect in (A, B1, B2):
        spoken = Spoken(B2)
        spoken.on_version(dialect)
        assert (spoken.dialect, spoken.possible) == (dialect, frozenset((dialect,)))
    spoken.on_version(A)  # another login on the same connection
    assert spoken.dialect is A


def test_a_silent_login_goes_by_memory_until_a_shape_shows() -> None:
    spoken = Spoken(B2)
    spoken.on_silent_login(A)
    assert (spoken.dialect, spoken.known) == (A, False)
    spoken.on_shape(WITH_FLAG)
    assert spoken.dialect is B2
    spoken.on_silent_login(A)  # memory is weaker than what was seen
    assert spoken.dialect is B2


@pytest.mark.parametrize(
    ("default", "shapes", "expected"),
    [
        (B2, [WITHOUT_FLAG], [A]),
        (B2, [WITH_FLAG, NARROW], [B2, B1]),
        (B2, [WITH_FLAG, WIDE], [B2, B2]),
        (B2, [NARROW, WITH_FLAG], [B1, B1]),
        (B2, [NARROW, WITHOUT_FLAG], [B1, A]),
        (A, [NARROW], [A]),
        (A, [WITH_FLAG], [B2]),
        (A, [WIDE, WITHOUT_FLAG], [B2, A]),
        (B1, [WITH_FLAG, NARROW], [B1, B1]),
        (B1, [WIDE], [B2]),
    ],
)
def test_shapes_narrow_it_down(
    default: Dialect, shapes: list[frozenset[Dialect]], expected: list[Dialect]
) -> None:
    spoken = Spoken(default)
    found = []
    for shape in shapes:
        spoken.on_shape(shape)
        found.append(spoken.dialect)
    assert found == expected


def test_a_request_that_only_fits_another_dialect_switches() -> None:
    spoken = Spoken(B2)
    spoken.on_version(B2)
    spoken.on_shape(WITHOUT_FLAG)
    assert spoken.dialect is A
    spoken.on_shape(WITH_FLAG)
    assert (spoken.dialect, spoken.possible) == (B2, WITH_FLAG)
    spoken.on_shape(CLASSIC)
    assert spoken.possible == WITH_FLAG


def test_a_hint_never_contradicts() -> None:
    spoken = Spoken(B2)
    spoken.on_silent_login(A)
    spoken.on_hint(WITH_FLAG)
    assert spoken.dialect is B2
    spoken.on_version(A)
    spoken.on_hint(WITH_FLAG)
    spoken.on_hint(WIDE)
    assert spoken.dialect is A
