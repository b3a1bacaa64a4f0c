"""What of the catalogue a user may see: the broker's own rules, on rights as the wire has them."""

from __future__ import annotations

from headrace.wire.iggy.messages.users import Permissions, StreamPermissions


def may_read_stream(permissions: Permissions | None, stream_id: int) -> bool:
    if permissions is None:
        return False
    everywhere = permissions.everywhere
    if everywhere.manage_streams or everywhere.read_streams:
        return True
    grant = _grant(permissions, stream_id)
    return grant is not None and (grant.manage_stream or grant.read_stream)


def may_read_topic(permissions: Permissions | None, stream_id: int, topic_id: int) -> bool:
    if permissions is None:
        return False
    everywhere = permissions.everywhere
    if (
        everywhere.read_streams
        or everywhere.manage_streams
        or everywhere.manage_topics
        or everywhere.read_topics
    ):
        return True
    return may_manage_topic(permissions, stream_id, topic_id) or any(
        grant.read_topics or any(one.read_topic for one in grant.topics if one.topic_id == topic_id)
        for grant in permissions.streams
        if grant.stream_id == stream_id
    )


def may_manage_topic(permissions: Permissions | None, stream_id: int, topic_id: int) -> bool:
    if permissions is None:
        return False
    if permissions.everywhere.manage_streams or permissions.everywhere.manage_topics:
        return True
    grant = _grant(permissions, stream_id)
    return grant is not None and (
        grant.manage_topics
        or any(one.manage_topic for one in grant.topics if one.topic_id == topic_id)
    )


def may_send(permissions: Permissions | None, stream_id: int, topic_id: int) -> bool:
    if permissions is None:
        return False
    if permissions.everywhere.send_messages:
        return True
    grant = _grant(permissions, stream_id)
    return grant is not None and (
        grant.manage_stream
        or grant.manage_topics
        or grant.send_messages
        or any(
            one.send_messages or one.manage_topic
            for one in grant.topics
            if one.topic_id == topic_id
        )
    )


def may_poll(permissions: Permissions | None, stream_id: int, topic_id: int) -> bool:
    if permissions is None:
        return False
    if permissions.everywhere.poll_messages:
        return True
    grant = _grant(permissions, stream_id)
    return grant is not None and (
        grant.read_stream
        or grant.manage_topics
        or grant.read_topics
        or grant.poll_messages
        or any(
            one.poll_messages or one.read_topic or one.manage_topic
            for one in grant.topics
            if one.topic_id == topic_id
        )
    )


def _grant(permissions: Permissions, stream_id: int) -> StreamPermissions | None:
    return next((one for one in permissions.streams if one.stream_id == stream_id), None)
