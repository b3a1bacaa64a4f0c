"""What is shown follows the broker's own rules."""

from __future__ import annotations

from headrace.web.broker_api.catalogue import may
from headrace.wire.iggy.commands import Permission as P
from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)


def test_rights_everywhere() -> None:
    reader = Permissions(GlobalPermissions(read_topics=True, poll_messages=True))
    assert may(reader, P.READ_TOPIC, 1, 1)
    assert may(reader, P.POLL, 1, 1)
    assert not may(reader, P.SEND, 1, 1)
    assert not may(reader, P.MANAGE_TOPIC, 1, 1)
    assert not may(reader, P.READ_SERVERS)
    assert not may(None, P.READ_TOPIC, 1, 1)
    root = Permissions(GlobalPermissions.all())
    assert all(may(root, action, 1, 1) for action in (P.SEND, P.MANAGE_TOPIC, P.READ_SERVERS))


def test_rights_of_one_stream_and_one_topic() -> None:
    topic = TopicPermissions(7, send_messages=True, read_topic=True)
    some = Permissions(streams=(StreamPermissions(3, topics=(topic,)),))
    assert may(some, P.SEND, 3, 7)
    assert may(some, P.READ_TOPIC, 3, 7)
    assert not may(some, P.SEND, 3, 8)
    assert not may(some, P.SEND, 4, 7)
    assert not may(some, P.MANAGE_TOPIC, 3, 7)
    whole = Permissions(streams=(StreamPermissions(3, manage_topics=True),))
    assert may(whole, P.MANAGE_TOPIC, 3, 99)
    assert not may(whole, P.GET_STREAM, 3)
