from __future__ import annotations

import pytest

from headrace.broker.catalogue.resources import (
    ROOT_PERMISSIONS,
    GlobalRight,
    Permissions,
    StreamGrant,
    StreamRight,
    TopicRight,
)
from headrace.broker.sessions.authorization import RULES, allowed
from headrace.wire.iggy.commands import Permission

ACTIONS = set(Permission) - {Permission.NONE}
HERE = {"stream_uid": 4, "topic_uid": 7}


def grant(stream: int = 0, topic: int = 0, everywhere: int = 0) -> Permissions:
    return Permissions(
        rights=everywhere, streams={4: StreamGrant(rights=stream, topics={7: topic})}
    )


def test_every_action_has_a_rule_and_root_may_do_it() -> None:
    assert set(RULES) == ACTIONS
    assert all(allowed(ROOT_PERMISSIONS, action) for action in ACTIONS)


@pytest.mark.parametrize("action", [a for a in Permission if a in ACTIONS])
def test_without_rights_nothing_is_allowed(action: Permission) -> None:
    assert not allowed(None, action, **HERE)
    assert not allowed(grant(), action, **HERE)


@pytest.mark.parametrize(
    ("action", "permissions", "expected"),
    [
        (Permission.POLL, grant(topic=TopicRight.POLL_MESSAGES), True),
        (Permission.POLL, grant(topic=TopicRight.READ_TOPIC), True),
        (Permission.POLL, grant(topic=TopicRight.SEND_MESSAGES), False),
        (Permission.POLL, grant(stream=StreamRight.READ_STREAM), True),
        (Permission.POLL, grant(everywhere=GlobalRight.READ_TOPICS), False),
        (Permission.SEND, grant(topic=TopicRight.SEND_MESSAGES), True),
        (Permission.SEND, grant(stream=StreamRight.MANAGE_STREAM), True),
        (Permission.SEND, grant(stream=StreamRight.READ_STREAM), False),
        (Permission.CREATE_TOPIC, grant(topic=TopicRight.MANAGE_TOPIC), False),
        (Permission.CREATE_TOPIC, grant(stream=StreamRight.MANAGE_TOPICS), True),
        (Permission.MANAGE_TOPIC, grant(topic=TopicRight.MANAGE_TOPIC), True),
        (Permission.MANAGE_STREAM, grant(stream=StreamRight.MANAGE_TOPICS), False),
        (Permission.MANAGE_USERS, grant(everywhere=GlobalRight.READ_USERS), False),
    ],
)
def test_rules(action: Permission, permissions: Permissions, expected: bool) -> None:
    assert allowed(permissions, action, **HERE) is expected


def test_a_grant_ends_at_its_stream_and_topic() -> None:
    rights = grant(stream=StreamRight.SEND_MESSAGES, topic=TopicRight.POLL_MESSAGES)
    assert not allowed(rights, Permission.SEND, stream_uid=5, topic_uid=7)
    assert not allowed(rights, Permission.POLL, stream_uid=4, topic_uid=8)
