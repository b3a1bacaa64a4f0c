"""Which topics are read and where reading starts and ends, as the options say it and as offsets.

topic            orders | orders,returns | ["orders", "returns"] | ord*
startingOffsets  earliest | latest | 2026-01-31T12:00:00Z | 1769860800000 (milliseconds)
                 {"0": 100, "1": 0} | {"orders": {"0": 100}}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Literal

from headrace.client.partition_reader import Key, SourceState
from headrace.client.topic_reader import AtTime, resolve_point, timestamp_us
from headrace.errors import ConfigError, InvalidArgumentError, OffsetOutOfRangeError
from headrace.spark.source.batch_plan import Offsets

_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics of one stream: by their names, or all that match a pattern now and later."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    @property
    def only(self) -> str | None:
        """The name, when it is one topic by its name."""
        return self.names[0] if len(self.names) == 1 else None

    def matching(self, existing: Iterable[str]) -> list[str]:
        """Of a pattern: the topics it means, in an order that never changes."""
        return sorted(name for name in existing if fnmatchcase(name, self.pattern))

    def __str__(self) -> str:
        return self.pattern or ",".join(self.names)


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """Offsets by topic and partition; what is not named stands where the other bound would."""

    topics: Mapping[str, Mapping[int, int]]


Position = Literal["earliest", "latest"] | AtTime | AtOffsets


def parse_topics(stream: str, text: str) -> tuple[str, Topics]:
    """The stream and its topics; without a stream, every name carries it: `shop/orders`."""
    names, listed = _names(text)
    if not stream:
        streams = {name.partition("/")[0] for name in names if name.count("/") == 1}
        if len(streams) != 1 or not all(name.count("/") == 1 for name in names):
            raise ConfigError("options stream and topic are both needed, or topic=stream/topic")
        (stream,) = streams
        names = [name.partition("/")[2] for name in names]
    if not stream or not names or not all(names):
        raise ConfigError("options stream and topic are both needed, or topic=stream/topic")
    if len(names) == 1 and not listed and _WILD & set(names[0]):
        return stream, Topics(pattern=names[0])
    if len(set(names)) != len(names):
        raise ConfigError(f"topic names a topic twice: {text}")
    return stream, Topics(names=tuple(names))


def _names(text: str) -> tuple[list[str], bool]:
    """The names, and whether they are a JSON list, in which nothing has a meaning of its own."""
    if not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",")], False
    try:
        value = json.loads(text)
    except ValueError:
        return [text], False  # a pattern that begins with a set of characters
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ConfigError(f'topic is a name, a list like ["a", "b"] or a pattern like a*: {text}')
    return value, True


def parse_position(name: str, text: str, topics: Topics) -> Position:
    """ConfigError unless `text` is a position in these topics."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return AtTime(int(text) * 1000)
    if text.lstrip().startswith("{"):
        return AtOffsets(_offsets(name, text, topics))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _not_a_position(name, text) from None
    return AtTime(timestamp_us(moment))


def _offsets(name: str, text: str, topics: Topics) -> dict[str, dict[int, int]]:
    try:
        value = json.loads(text)
    except ValueError:
        raise _not_a_position(name, text) from None
    if value and all(isinstance(inner, dict) for inner in value.values()):
        unknown = sorted(set(value) - set(topics.names)) if not topics.pattern else []
        if unknown:
            raise ConfigError(f"{name} names {', '.join(unknown)}, which topic does not")
        return {topic: _by_partition(name, text, inner) for topic, inner in value.items()}
    if topics.only is None:
        raise ConfigError(
            f'with several topics {name} says which: {{"orders": {{"0": 100}}}}, not {text}'
        )
    return {topics.only: _by_partition(name, text, value)}


def _by_partition(name: str, text: str, value: Mapping[str, Any]) -> dict[int, int]:
    if not all(
        key.isdecimal() and type(offset) is int and offset >= 0 for key, offset in value.items()
    ):
        raise _not_a_position(name, text)
    return {int(key): offset for key, offset in value.items()}


def _not_a_position(name: str, text: str) -> ConfigError:
    return ConfigError(
        f"{name} is earliest, latest, a time like 2026-01-31T12:00:00Z or in milliseconds, "
        f'or JSON like {{"0": 100, "1": 0}}: {text}'
    )


def resolve(
    state: SourceState,
    position: Position,
    *,
    rest: Literal["earliest", "latest"] = "earliest",
    times: Mapping[Key, int] | None = None,
    clamp: bool = False,
) -> Offsets:
    """Where a position stands in the topics as they are now.

    `rest` holds for partitions that explicit offsets leave out, `times` says where the messages
    of a time begin; a partition that has none is at its end. OffsetOutOfRangeError for offsets that
    are not there, unless they may be moved to the nearest that are (`clamp`).
    """
    explicit: Mapping[str, Mapping[int, int]] = {}
    if isinstance(position, AtOffsets):
        explicit = position.topics
        _check_named(state, explicit)
    elif not isinstance(position, AtTime):
        rest = position
    positions = {}
    for key, topic, each in state.partitions():
        named = explicit.get(topic.topic, {}).get(each.partition, rest)
        point = position if isinstance(position, AtTime) else named
        at = resolve_point(point, each.start, each.end, (times or {}).get(key))
        at = min(max(at, each.start), each.end) if clamp else at
        if not each.start <= at <= each.end:
            raise OffsetOutOfRangeError(
                f"partition {each.partition} of {topic.name} holds offsets "
                f"{each.start} to {each.end}, not {at}"
            )
        positions[key] = (each.generation, at)
    return Offsets(state.cluster, positions)


def _check_named(state: SourceState, explicit: Mapping[str, Mapping[int, int]]) -> None:
    topics = {topic.topic: topic for topic in state.topics}
    for name, offsets in explicit.items():
        if name not in topics:
            raise InvalidArgumentError(f"there is no topic {name} among those that are read")
        unknown = sorted(set(offsets) - {each.partition for each in topics[name].partitions})
        if unknown:
            raise InvalidArgumentError(f"topic {topics[name].name} has no partition {unknown}")
