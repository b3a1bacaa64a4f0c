"""Which dialect a connection speaks: a list of events and the dialect after each."""

from __future__ import annotations

import pytest

from headrace.wire.iggy.detection import SpokenDialect
from headrace.wire.iggy.dialects import CLASSIC, Dialect, of_version

A, B1, B2 = Dialect.A, Dialect.B1, Dialect.B2
WITHOUT_FLAG, WITH_FLAG = frozenset((A,)), frozenset((B1, B2))
NARROW, WIDE = frozenset((A, B1)), frozenset((B2,))


@pytest.mark.parametrize("default", [A, B1, B2])
def test_nothing_shown_is_the_default(default: Dialect) -> None:
    spoken = SpokenDialect(default)
    assert (spoken.dialect, spoken.known) == (default, False)
    spoken.on_silent_login(None)
    assert (spoken.dialect, spoken.known) == (default, False)


def test_a_version_settles_it() -> None:
    for dialect in (A, B1, B2):
        spoken = SpokenDialect(B2)
        spoken.on_dialect(dialect)
        assert (spoken.dialect, spoken.possible) == (dialect, frozenset((dialect,)))
    spoken.on_dialect(A)  # another login on the same connection
    assert spoken.dialect is A


def test_a_silent_login_goes_by_memory_until_a_shape_shows() -> None:
    spoken = SpokenDialect(B2)
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
    spoken = SpokenDialect(default)
    found = []
    for shape in shapes:
        spoken.on_shape(shape)
        found.append(spoken.dialect)
    assert found == expected


def test_a_request_that_only_fits_another_dialect_switches() -> None:
    spoken = SpokenDialect(B2)
    spoken.on_dialect(B2)
    spoken.on_shape(WITHOUT_FLAG)
    assert spoken.dialect is A
    spoken.on_shape(WITH_FLAG)
    assert (spoken.dialect, spoken.possible) == (B2, WITH_FLAG)
    spoken.on_shape(CLASSIC)
    assert spoken.possible == WITH_FLAG


def test_a_hint_never_contradicts() -> None:
    spoken = SpokenDialect(B2)
    spoken.on_silent_login(A)
    spoken.on_hint(WITH_FLAG)
    assert spoken.dialect is B2
    spoken.on_dialect(A)
    spoken.on_hint(WITH_FLAG)
    spoken.on_hint(WIDE)
    assert spoken.dialect is A


def stated(spoken: SpokenDialect, version: str) -> SpokenDialect:
    found = of_version(version)
    assert found is not None
    spoken.on_version(found)
    return spoken


@pytest.mark.parametrize(
    ("version", "with_ping", "without"),
    [
        ("0.5.0", {A}, {A}),
        ("0.6.0", {B1}, {B1}),
        ("0.7.0", {A}, {A, B2}),
        ("0.8.0", {B1}, {B1, B2}),
        ("0.9.1", {B2}, {B2}),
        ("0.10.0", {B2}, {B2}),
    ],
)
def test_a_version_is_the_crates_or_the_sdks_own(
    version: str, with_ping: set[Dialect], without: set[Dialect]
) -> None:
    pinged = SpokenDialect(B2)
    pinged.on_ping(early=True)
    assert stated(pinged, version).possible == with_ping
    assert not pinged.undecided
    for late in (SpokenDialect(B2), SpokenDialect(B2)):
        late.on_ping(early=False)
        assert stated(late, version).possible == without
    assert of_version("1.0.0") is of_version("") is None


def test_a_ping_right_after_the_login_tells_the_crate() -> None:
    """A connection string logs in while it connects; the first PING comes after that."""
    spoken = stated(SpokenDialect(B2), "0.8.0")
    assert spoken.undecided
    spoken.on_ping(early=True)
    assert (spoken.dialect, spoken.undecided) == (B1, False)
    assert spoken.on_poll(nobody=True)
    assert spoken.dialect is B1


def test_a_poll_without_a_ping_tells_another_sdk() -> None:
    spoken = stated(SpokenDialect(B2), "0.8.0")
    spoken.on_ping(early=False)
    assert spoken.on_poll(nobody=False)
    assert (spoken.dialect, spoken.undecided) == (B2, False)


def test_a_poll_that_may_be_either_is_answered_with_nothing_once() -> None:
    spoken = stated(SpokenDialect(B2), "0.8.0")
    assert not spoken.on_poll(nobody=True)
    spoken.on_ping(early=True)  # the crate's was waiting for the answer
    assert spoken.on_poll(nobody=True)
    assert spoken.dialect is B1
    spoken = stated(SpokenDialect(B2), "0.8.0")
    assert not spoken.on_poll(nobody=True)
    assert spoken.on_poll(nobody=True)
    assert spoken.dialect is B2


@pytest.mark.parametrize(("shape", "expected"), [(WITHOUT_FLAG, A), (WITH_FLAG, B2), (WIDE, B2)])
def test_shapes_decide_between_the_two(shape: frozenset[Dialect], expected: Dialect) -> None:
    spoken = stated(SpokenDialect(B2), "0.7.0")
    assert spoken.dialect is A
    spoken.on_shape(shape)
    assert (spoken.dialect, spoken.undecided) == (expected, False)
