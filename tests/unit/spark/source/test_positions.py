"""Which topics and from where: what is understood and what is refused."""

import pytest

from headrace.client.topic_reader import AtTime
from headrace.errors import ConfigError
from headrace.spark.source.positions import AtOffsets, Topics, parse_position, parse_topics

ONE, TWO, MANY = Topics(("a",)), Topics(("a", "b")), Topics(pattern="a*")


@pytest.mark.parametrize(
    ("stream", "text", "topics"),
    [
        ("s", "a", ONE),
        ("s", "a, b", TWO),
        ("s", '["a", "b"]', TWO),
        ("s", '["a*", "x,y"]', Topics(("a*", "x,y"))),
        ("s", "a*", MANY),
        ("s", "[ab]?", Topics(pattern="[ab]?")),
        ("s", "x/y", Topics(("x/y",))),
        ("", "s/a", ONE),
        ("", "s/a,s/b", TWO),
        ("", "s/a*", MANY),
    ],
)
def test_topics(stream: str, text: str, topics: Topics) -> None:
    assert parse_topics(stream, text) == ("s", topics)


@pytest.mark.parametrize(
    ("stream", "text"),
    [("", "a"), ("s", ""), ("s", "a,,b"), ("s", "a,a"), ("", "s/a,t/b"), ("s", "[1]"), ("s", "[]")],
)
def test_topics_that_are_refused(stream: str, text: str) -> None:
    with pytest.raises(ConfigError):
        parse_topics(stream, text)


def test_a_pattern_finds_topics_that_come_later() -> None:
    assert MANY.matching(["b", "ab", "a", "A"]) == ["a", "ab"]


@pytest.mark.parametrize(
    ("text", "topics", "position"),
    [
        ("earliest", ONE, "earliest"),
        ("latest", MANY, "latest"),
        ('{"0": 3, "2": 0}', ONE, AtOffsets({"a": {0: 3, 2: 0}})),
        ('{"b": {"0": 3}}', TWO, AtOffsets({"b": {0: 3}})),
        ('{"ax": {"0": 3}}', MANY, AtOffsets({"ax": {0: 3}})),
        ("1769860800000", ONE, AtTime(1769860800000000)),
        ("2026-01-31T12:00:00Z", ONE, AtTime(1769860800000000)),
        ("2026-01-31 12:00:00.000001", ONE, AtTime(1769860800000001)),
        ("2026-01-31T13:00:00+01:00", TWO, AtTime(1769860800000000)),
        ("2026-01-31", ONE, AtTime(1769817600000000)),
    ],
)
def test_positions(text: str, topics: Topics, position: object) -> None:
    assert parse_position("startingOffsets", text, topics) == position


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("first", ONE),
        ('{"0": -1}', ONE),
        ('{"x": 1}', ONE),
        ('{"0": true}', ONE),
        ("{", ONE),
        ("[1]", ONE),
        ('{"0": 3}', TWO),
        ('{"0": 3}', MANY),
        ('{"c": {"0": 3}}', TWO),
    ],
)
def test_positions_that_are_refused(text: str, topics: Topics) -> None:
    with pytest.raises(ConfigError, match="startingOffsets"):
        parse_position("startingOffsets", text, topics)
