"""Permissions as text: `poll_messages`, `shop:read_stream`, `shop/orders:send_messages`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import click

from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)

EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class Names:
    """Ids of what the rules may name."""

    streams: Mapping[str, int]
    topics: Mapping[tuple[str, str], int]


def flags_of(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind) if not field.name.endswith("_id")]


def build(rules: Sequence[str], names: Names) -> Permissions | None:
    """BadParameter for a rule that means nothing."""
    everywhere: set[str] = set()
    streams: dict[str, set[str]] = {}
    topics: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        where, colon, flag = rule.rpartition(":")
        stream, slash, topic = where.partition("/")
        if not colon:
            everywhere |= _known(rule, flag, GlobalPermissions)
        elif slash:
            topics.setdefault((stream, topic), set()).update(_known(rule, flag, TopicPermissions))
        else:
            streams.setdefault(stream, set()).update(_known(rule, flag, StreamPermissions))
    if not rules:
        return None
    for stream, _ in topics:
        streams.setdefault(stream, set())
    return Permissions(
        GlobalPermissions(**dict.fromkeys(everywhere, True)),
        tuple(_stream(name, flags, topics, names) for name, flags in streams.items()),
    )


def _known(rule: str, flag: str, kind: type[Any]) -> set[str]:
    known = [name for name in flags_of(kind) if name != "topics"]
    if flag == EVERYTHING:
        return set(known)
    if flag not in known:
        raise click.BadParameter(f"{rule!r}: no such permission; known here: {', '.join(known)}")
    return {flag}


def _stream(
    name: str, flags: set[str], topics: Mapping[tuple[str, str], set[str]], names: Names
) -> StreamPermissions:
    if name not in names.streams:
        raise click.BadParameter(f"there is no stream {name!r}")
    inside = []
    for (stream, topic), allowed in topics.items():
        if stream != name:
            continue
        if (stream, topic) not in names.topics:
            raise click.BadParameter(f"there is no topic {stream}/{topic}")
        inside.append(TopicPermissions(names.topics[stream, topic], **dict.fromkeys(allowed, True)))
    return StreamPermissions(
        names.streams[name], **dict.fromkeys(flags, True), topics=tuple(inside)
    )


def places() -> list[dict[str, str]]:
    """Every permission, with the forms in which it can be given."""
    kinds = (
        ("NAME", GlobalPermissions),
        ("STREAM:NAME", StreamPermissions),
        ("STREAM/TOPIC:NAME", TopicPermissions),
    )
    found: dict[str, list[str]] = {}
    for form, kind in kinds:
        for flag in flags_of(kind):
            if flag != "topics":
                found.setdefault(flag, []).append(form.replace("NAME", flag))
    return [{"name": name, "given": ", ".join(forms)} for name, forms in found.items()]


def told(
    permissions: Permissions | None,
    streams: Mapping[int, str],
    topics: Mapping[tuple[int, int], str],
) -> list[str]:
    """The rules that would build it; what has no name any more by its number."""
    if permissions is None:
        return []
    rules = [flag for flag in flags_of(GlobalPermissions) if getattr(permissions.everywhere, flag)]
    for stream in permissions.streams:
        name = streams.get(stream.stream_id, str(stream.stream_id))
        kept = [flag for flag in flags_of(StreamPermissions) if flag != "topics"]
        rules += [f"{name}:{flag}" for flag in kept if getattr(stream, flag)]
        for topic in stream.topics:
            rules += [
                f"{name}/{topics.get((stream.stream_id, topic.topic_id), topic.topic_id)}:{flag}"
                for flag in flags_of(TopicPermissions)
                if getattr(topic, flag)
            ]
    return rules
