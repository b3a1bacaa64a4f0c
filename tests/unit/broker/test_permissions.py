from __future__ import annotations

import pytest

from headrace.broker.permissions import RULES, Action, allowed
from headrace.broker.resources import (
    ROOT_PERMISSIONS,
    GlobalRight,
    Permissions,
    StreamGrant,
    StreamRight,
    TopicRight,
)

HERE = {"stream_uid": 4, "topic_uid": 7}


def grant(stream: int = 0, topic: int = 0, everywhere: int = 0) -> Permissions:
    return Permissions(
        rights=everywhere, streams={4: StreamGrant(rights=stream, topics={7: topic})}
    )


def test_every_action_has_a_rule_and_root_may_do_it() -> None:
    assert set(RULES) == set(Action)
    assert all(allowed(ROOT_PERMISSIONS, action) for action in Action)


@pytest.mark.parametrize("action", Action)
def test_without_rights_nothing_is_allowed(action: Action) -> None:
    assert not allowed(None, action, **HERE)
    assert not allowed(grant(), action, **HERE)


@pytest.mark.parametrize(
    ("action", "permissions", "expected"),
    [
        (Action.POLL, grant(topic=TopicRight.POLL_MESSAGES), True),
        (Action.POLL, grant(topic=TopicRight.READ_TOPIC), True),
        (Action.POLL, grant(topic=TopicRight.SEND_MESSAGES), False),
        (Action.POLL, grant(stream=StreamRight.READ_STREAM), True),
        (Action.POLL, grant(everywhere=GlobalRight.READ_TOPICS), False),
        (Action.SEND, grant(topic=TopicRight.SEND_MESSAGES), True),
        (Action.SEND, grant(stream=StreamRight.MANAGE_STREAM), True),
        (Action.SEND, grant(stream=StreamRight.READ_STREAM), False),
        (Action.CREATE_TOPIC, grant(topic=TopicRight.MANAGE_TOPIC), False),
        (Action.CREATE_TOPIC, grant(stream=StreamRight.MANAGE_TOPICS), True),
        (Action.MANAGE_TOPIC, grant(topic=TopicRight.MANAGE_TOPIC), True),
        (Action.MANAGE_STREAM, grant(stream=StreamRight.MANAGE_TOPICS), False),
        (Action.MANAGE_USERS, grant(everywhere=GlobalRight.READ_USERS), False),
    ],
)
def test_rules(action: Action, permissions: Permissions, expected: bool) -> None:
    assert allowed(permissions, action, **HERE) is expected


def test_a_grant_ends_at_its_stream_and_topic() -> None:
    rights = grant(stream=StreamRight.SEND_MESSAGES, topic=TopicRight.POLL_MESSAGES)
    assert not allowed(rights, Action.SEND, stream_uid=5, topic_uid=7)
    assert not allowed(rights, Action.POLL, stream_uid=4, topic_uid=8)
