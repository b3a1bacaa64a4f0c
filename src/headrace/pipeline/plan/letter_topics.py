"""Where an application's dead letters are, from its plan alone. Needs no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SUFFIX = ".dead_letter"
LETTERS_SUFFIX = "LETTERS_SUFFIX"  # attribute of an application: behind SUFFIX; of a backfill


def letter_topics(plan: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The topics, `stream/topic`, that each operator's letters go to, should there be any.

    What does not fit a topic's schema goes beside that topic. Any other operator's letters go to
    the stream of a topic the application reads: which one, a plan of several does not say.
    """
    topics = topic_inputs(plan)
    suffix = f"{SUFFIX}{plan.get('attributes', {}).get(LETTERS_SUFFIX, '')}"
    streams = dict.fromkeys(topic.split("/", 1)[0] for topic in topics.values())
    found: dict[str, tuple[str, ...]] = {}
    for one in plan.get("operators", ()):
        name = str(one["name"])
        if name in topics:
            found[name] = (f"{topics[name]}{suffix}",)
        else:
            found[name] = tuple(f"{stream}/{name}{suffix}" for stream in streams)
    return found


def topic_inputs(plan: Mapping[str, Any]) -> dict[str, str]:
    """The topics that an application reads, by the names of their ports."""
    return {
        str(one["name"]): str(one["properties"]["topic"])
        for one in plan.get("operators", ())
        if one.get("properties", {}).get("topic") and _reads(one)
    }


def plan_topics(plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Every topic that an application reads or writes; not those between its containers."""
    written = (one.get("attributes", {}).get("OUTPUT_TOPIC") for one in plan.get("operators", ()))
    found = dict.fromkeys(topic_inputs(plan).values())
    return tuple({**found, **dict.fromkeys(str(one) for one in written if one)})


def _reads(operator: Mapping[str, Any]) -> bool:
    return not any(port.get("kind") == "input" for port in operator.get("ports", ()))
