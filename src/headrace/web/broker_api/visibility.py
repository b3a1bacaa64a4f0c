"""What of the catalogue a user may see and do: the broker's own rules, on rights off the wire.

It decides only what is shown. What is done is asked of the broker, which decides for itself.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from typing import Any

from headrace.broker.catalogue import resources
from headrace.broker.sessions.authorization import allowed
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.messages.users import Permissions


def may(
    permissions: Permissions | None, action: Permission, stream_id: int = -1, topic_id: int = -1
) -> bool:
    """Numbers stand where the broker has uids: both name a resource that is there now."""
    if permissions is None:
        return False
    return allowed(_converted(permissions), action, stream_uid=stream_id, topic_uid=topic_id)


@lru_cache(256)
def _converted(given: Permissions) -> resources.Permissions:
    return resources.Permissions(
        rights=_bits(given.everywhere),
        streams={
            stream.stream_id: resources.StreamGrant(
                rights=_bits(stream),
                topics={topic.topic_id: _bits(topic) for topic in stream.topics},
            )
            for stream in given.streams
        },
    )


def _bits(block: Any) -> int:
    """Bit i is flag i of the block, as the broker numbers them."""
    flags = [getattr(block, one.name) for one in fields(block)]
    return sum(value << i for i, value in enumerate(f for f in flags if isinstance(f, bool)))
