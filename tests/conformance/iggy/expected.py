"""What each recorded frame means, in canonical form (ids from 0).

Keys are file names without the client: `create-topic` for Python's, `node/create-topic` for Node's.
Where clients differ, the version stands in front. SEND_MESSAGES is checked by itself.
"""

from headrace.wire.iggy.messages.consumers import (
    CreateGroup,
    DeleteConsumerOffset,
    GetGroup,
    GetGroups,
    JoinGroup,
    StoreConsumerOffset,
)
from headrace.wire.iggy.messages.messages import PollMessages
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import (
    NEVER_EXPIRES,
    Compression,
    CreatePartitions,
    CreateStream,
    CreateTopic,
    DeletePartitions,
    DeleteStream,
    DeleteTopic,
    GetStream,
    GetTopic,
    GetTopics,
    PurgeStream,
    PurgeTopic,
    UpdateStream,
    UpdateTopic,
)
from headrace.wire.iggy.messages.users import (
    CreatePersonalAccessToken,
    CreateUser,
    DeletePersonalAccessToken,
    GetUser,
    GlobalPermissions,
    LoginUser,
    LoginWithPersonalAccessToken,
    Permissions,
)
from headrace.wire.iggy.primitives import Consumer, Strategy

_NONE, _GZIP = Compression.NONE, Compression.GZIP
_GROUP = Consumer.group("g1")


def _python_poll(consumer: int, partition: int) -> dict[str, object]:
    who = Consumer.single(consumer)
    strategies = {
        "offset5": Strategy.offset(5),
        "timestamp": Strategy.timestamp(1_700_000_000_000_000),
        "first": Strategy.first(),
        "last": Strategy.last(),
        "next": Strategy.next(),
    }
    return {
        f"poll-messages-consumer-{name}-part1": PollMessages(
            who, "s1", "t1", partition, strategy, 10, auto_commit=name == "next"
        )
        for name, strategy in strategies.items()
    }


def _python(version: str, *, partition: int, expiry_us: int) -> dict[str, object]:
    """`partition` is what the wire's 1 means."""
    return {
        "ping": Empty(),
        "login-user": LoginUser("iggy", "iggy", version, ""),
        "login-with-personal-access-token": LoginWithPersonalAccessToken(
            "iggypat-abcdefgh12345678"
        ),
        "get-cluster-metadata": Empty(),
        "get-stream-named": GetStream("s1"),
        "get-stream-numeric": GetStream(partition),  # ids shift like partitions
        "create-stream": CreateStream("s1"),
        "get-topic": GetTopic("s1", "t1"),
        "create-topic": CreateTopic("s1", 2, _NONE, expiry_us, 0, 0, "t1"),
        "create-topic-gzip": CreateTopic("s1", 2, _GZIP, expiry_us, 0, 1, "t1"),
        "create-topic-expiry": CreateTopic("s1", 2, _NONE, 300_000_000, 1_000_000_000, 0, "t1"),
        "get-consumer-group": GetGroup("s1", "t1", "g1"),
        "create-consumer-group": CreateGroup("s1", "t1", "g1"),
        "join-consumer-group": JoinGroup("s1", "t1", "g1"),
        "store-consumer-offset-part1": StoreConsumerOffset(_GROUP, "s1", "t1", partition, 2),
        "store-consumer-offset-part0": StoreConsumerOffset(_GROUP, "s1", "t1", 0, 2),
        "delete-consumer-offset-part1": DeleteConsumerOffset(_GROUP, "s1", "t1", partition),
        "delete-consumer-offset-none": DeleteConsumerOffset(_GROUP, "s1", "t1", None),
        "poll-messages-group-next-part1": PollMessages(
            _GROUP, "s1", "t1", partition, Strategy.next(), 10
        ),
        "poll-messages-group-next-nopart": PollMessages(
            _GROUP, "s1", "t1", None, Strategy.next(), 10
        ),
    }


_NODE_USER = CreateUser(
    "test-user",
    "test-pwd123$!",
    permissions=Permissions(
        GlobalPermissions(
            manage_users=True,
            read_users=True,
            manage_streams=True,
            read_streams=True,
            manage_topics=True,
            read_topics=True,
            poll_messages=True,
            send_messages=True,
        )
    ),
)
_NODE: dict[str, object] = {
    "login-user": LoginUser("iggy", "iggy"),
    "logout-user": Empty(),
    "get-stats": Empty(),
    "get-streams": Empty(),
    "get-users": Empty(),
    "get-user": GetUser("test-user"),
    "create-user": _NODE_USER,
    "get-personal-access-tokens": Empty(),
    "create-personal-access-token": CreatePersonalAccessToken("yolo-token-test", 1800),
    "delete-personal-access-token": DeletePersonalAccessToken("yolo-token-test"),
}
_STREAM, _RENAMED = "e2e-tcp-stream", "e2e-tcp-stream-updated"
_OWNER, _TOPIC = "e2e-tcp-topic-stream", "e2e-tcp-topic-topic-123"
_GROUP_PATH = "e2e-consumer-group-stream-543", "e2e-consumer-group-topic-543"
_NODE_GROUP = "e2e-cg-cg-1"

_NODE_B: dict[str, object] = _NODE | {
    "create-stream": CreateStream(_STREAM),
    "get-stream": GetStream(_STREAM),
    "update-stream": UpdateStream(_STREAM, _RENAMED),
    "purge-stream": PurgeStream(_RENAMED),
    "delete-stream": DeleteStream(_RENAMED),
    "create-topic": CreateTopic(_OWNER, 0, _NONE, 0, 0, 1, _TOPIC),
    "get-topics": GetTopics(_OWNER),
    "get-topic": GetTopic(_OWNER, _TOPIC),
    "create-partitions": CreatePartitions(_OWNER, _TOPIC, 22),
    "delete-partitions": DeletePartitions(_OWNER, _TOPIC, 19),
    "purge-topic": PurgeTopic(_OWNER, _TOPIC),
    "delete-topic": DeleteTopic(_OWNER, _TOPIC),
    "create-consumer-group": CreateGroup(*_GROUP_PATH, _NODE_GROUP),
    "get-consumer-group": GetGroup(*_GROUP_PATH, _NODE_GROUP),
    "get-consumer-groups": GetGroups(*_GROUP_PATH),
    "join-consumer-group": JoinGroup(*_GROUP_PATH, _NODE_GROUP),
    "poll-messages": PollMessages(
        Consumer.group(_NODE_GROUP), *_GROUP_PATH, None, Strategy.next(), 100, True
    ),
}
# Dialect A numbers from 1, so the test suite's stream 164 is our 163.
_NODE_A: dict[str, object] = _NODE | {
    "create-stream": CreateStream(_STREAM, stream_id=163),
    "get-stream": GetStream(163),
    "update-stream": UpdateStream(163, _RENAMED),
    "purge-stream": PurgeStream(163),
    "delete-stream": DeleteStream(163),
    "create-topic": CreateTopic(110, 0, _NONE, 0, 0, 1, "e2e-tcp-topic", topic_id=122),
    "get-topics": GetTopics(110),
    "get-topic": GetTopic(110, 122),
    "create-partitions": CreatePartitions(110, 122, 22),
    "delete-partitions": DeletePartitions(110, 122, 19),
    "update-topic": UpdateTopic(110, 122, _NONE, 42, 0, 1, "t1"),
    "purge-topic": PurgeTopic(110, 122),
    "delete-topic": DeleteTopic(110, 122),
    "create-consumer-group": CreateGroup(554, 665, "e2e-cg-1", group_id=332),
    "get-consumer-group": GetGroup(554, 665, 332),
    "get-consumer-groups": GetGroups(554, 665),
    "join-consumer-group": JoinGroup(554, 665, 332),
    "poll-messages": PollMessages(Consumer.group(332), 554, 665, None, Strategy.next(), 100, True),
}


def _named(prefix: str, frames: dict[str, object]) -> dict[str, object]:
    return {f"{prefix}-{name}": request for name, request in frames.items()}


EXPECTED: dict[str, object] = {
    **_named("0.5.0", _python("0.7.0", partition=0, expiry_us=NEVER_EXPIRES)),
    **_named("0.5.0", _python_poll(1, 0)),
    "0.5.0-create-stream-id7": CreateStream("s1", stream_id=6),
    "0.5.0-create-topic-gzip": CreateTopic("s1", 2, _GZIP, NEVER_EXPIRES, 0, 1, "t1", topic_id=8),
    "0.5.0-store-consumer-offset-none": StoreConsumerOffset(_GROUP, "s1", "t1", None, 2),
    **_named("0.6.0", _python("0.8.0", partition=1, expiry_us=NEVER_EXPIRES)),
    **_named("0.6.0", _python_poll(0, 1)),
    **_named("0.7.0", _python("0.9.0", partition=1, expiry_us=0)),
    **_named("0.7.0", _python_poll(0, 1)),
    **_named("0.8.0", _python("0.10.0", partition=1, expiry_us=0)),
    **_named("0.8.0", _python_poll(0, 1)),
    **_named("node-0.5.0", _NODE_A),
    **_named("node-0.6.0", _NODE_B),
    **_named("node-0.8.0", _NODE_B),
}
"""By file name. Holds a few names that no client recorded; every file must be here or be a SEND."""
