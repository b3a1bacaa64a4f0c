"""Every served command against every flag at every level: allowed exactly where the table says.

The table is written down here a second time, in the words of the protocol's description, so that a
wrong row in the code has to be wrong twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from headrace.broker.sessions.authorization import authorize
from headrace.errors import UnauthorizedError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import consumers as g
from headrace.wire.iggy.messages import consumers as o
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages import topics as s
from headrace.wire.iggy.messages import topics as t
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.messages import (
    FlushUnsavedBuffer,
    Message,
    PollMessages,
    encode_send,
)
from headrace.wire.iggy.messages.system import (
    Empty,
    GetClient,
    GetSnapshot,
    SnapshotCompression,
    SnapshotType,
)
from headrace.wire.iggy.primitives import Consumer, Partitioning, Strategy
from tests.unit.broker.harness import Client, Harness, code_of, opened


@dataclass(frozen=True)
class Allowed:
    everywhere: frozenset[str] = frozenset()
    stream: frozenset[str] = frozenset()
    topic: frozenset[str] = frozenset()
    anyone: bool = False


def rule(everywhere: str, stream: str = "", topic: str = "") -> Allowed:
    return Allowed(
        frozenset(everywhere.split()), frozenset(stream.split()), frozenset(topic.split())
    )


ANYONE = Allowed(anyone=True)
SERVERS = rule("manage_servers read_servers")
MANAGE_SERVERS = rule("manage_servers")
READ_USERS = rule("manage_users read_users")
MANAGE_USERS = rule("manage_users")
CREATE_STREAM = rule("manage_streams")
LIST_STREAMS = rule("manage_streams read_streams")
GET_STREAM = rule("manage_streams read_streams", "manage_stream read_stream")
CHANGE_STREAM = rule("manage_streams", "manage_stream")
READ_TOPIC = rule(
    "read_streams manage_streams manage_topics read_topics",
    "manage_topics read_topics",
    "manage_topic read_topic",
)
CREATE_TOPIC = rule("manage_streams manage_topics", "manage_topics")
CHANGE_TOPIC = rule("manage_streams manage_topics", "manage_topics", "manage_topic")
POLL = rule(
    "poll_messages",
    "read_stream manage_topics read_topics poll_messages",
    "poll_messages read_topic manage_topic",
)
SEND = rule(
    "send_messages", "manage_stream manage_topics send_messages", "send_messages manage_topic"
)

ME = Consumer.single(1)


@dataclass
class Row:
    allowed: Allowed
    request: Any = field(default_factory=Empty)


def rows(stream: str, topic: str) -> dict[c.AnyCommand, Row]:
    """What is asked of `stream` and `topic`."""
    here = (stream, topic)
    topic_body = (t.Compression.NONE, 0, 0, 1)
    send = encode_send(stream, topic, Partitioning.to_partition(0), [Message(b"x")])
    poll = PollMessages(ME, stream, topic, 0, Strategy.first(), 1, False)
    snapshot = GetSnapshot(SnapshotCompression.STORED, (SnapshotType.TEST,))
    return {
        c.GET_STATS: Row(SERVERS),
        c.GET_SNAPSHOT_FILE: Row(SERVERS, snapshot),
        c.GET_CLUSTER_METADATA: Row(ANYONE),
        c.GET_ME: Row(ANYONE),
        c.GET_CLIENT: Row(SERVERS, GetClient(1)),
        c.GET_CLIENTS: Row(SERVERS),
        c.GET_USER: Row(READ_USERS, u.GetUser("iggy")),
        c.GET_USERS: Row(READ_USERS),
        c.CREATE_USER: Row(MANAGE_USERS, u.CreateUser("bob", "secret")),
        c.DELETE_USER: Row(MANAGE_USERS, u.DeleteUser("iggy")),
        c.UPDATE_USER: Row(MANAGE_USERS, u.UpdateUser("iggy", "root", None)),
        c.UPDATE_PERMISSIONS: Row(MANAGE_USERS, u.UpdatePermissions("iggy", None)),
        c.CHANGE_PASSWORD: Row(ANYONE, u.ChangePassword("ann", "secret", "better")),
        c.LOGOUT_USER: Row(ANYONE),
        c.GET_PERSONAL_ACCESS_TOKENS: Row(ANYONE),
        c.CREATE_PERSONAL_ACCESS_TOKEN: Row(ANYONE, u.CreatePersonalAccessToken("new", 0)),
        c.DELETE_PERSONAL_ACCESS_TOKEN: Row(ANYONE, u.DeletePersonalAccessToken("new")),
        c.POLL_MESSAGES: Row(POLL, poll),
        c.SEND_MESSAGES: Row(SEND, send),
        c.FLUSH_UNSAVED_BUFFER: Row(SEND, FlushUnsavedBuffer(*here, 0)),
        c.GET_CONSUMER_OFFSET: Row(POLL, o.GetConsumerOffset(ME, *here, 0)),
        c.STORE_CONSUMER_OFFSET: Row(POLL, o.StoreConsumerOffset(ME, *here, 0, 0)),
        c.DELETE_CONSUMER_OFFSET: Row(POLL, o.DeleteConsumerOffset(ME, *here, 0)),
        c.GET_STREAM: Row(GET_STREAM, s.GetStream(stream)),
        c.GET_STREAMS: Row(LIST_STREAMS),
        c.CREATE_STREAM: Row(CREATE_STREAM, s.CreateStream("new")),
        c.DELETE_STREAM: Row(CHANGE_STREAM, s.DeleteStream(stream)),
        c.UPDATE_STREAM: Row(CHANGE_STREAM, s.UpdateStream(stream, "new")),
        c.PURGE_STREAM: Row(CHANGE_STREAM, s.PurgeStream(stream)),
        c.GET_TOPIC: Row(READ_TOPIC, t.GetTopic(*here)),
        # Of one stream: no topic is named, so rights on one topic do not suffice.
        c.GET_TOPICS: Row(Allowed(READ_TOPIC.everywhere, READ_TOPIC.stream), t.GetTopics(stream)),
        c.CREATE_TOPIC: Row(CREATE_TOPIC, t.CreateTopic(stream, 1, *topic_body, "new")),
        c.DELETE_TOPIC: Row(CHANGE_TOPIC, t.DeleteTopic(*here)),
        c.UPDATE_TOPIC: Row(CHANGE_TOPIC, t.UpdateTopic(stream, topic, *topic_body, "new")),
        c.PURGE_TOPIC: Row(CHANGE_TOPIC, t.PurgeTopic(*here)),
        c.CREATE_PARTITIONS: Row(CHANGE_TOPIC, t.CreatePartitions(*here, 1)),
        c.DELETE_PARTITIONS: Row(CHANGE_TOPIC, t.DeletePartitions(*here, 1)),
        c.DELETE_SEGMENTS: Row(CHANGE_TOPIC, t.DeleteSegments(*here, 0, 1)),
        c.GET_CONSUMER_GROUP: Row(READ_TOPIC, g.GetGroup(*here, "g")),
        c.GET_CONSUMER_GROUPS: Row(READ_TOPIC, g.GetGroups(*here)),
        c.CREATE_CONSUMER_GROUP: Row(READ_TOPIC, g.CreateGroup(*here, "new")),
        c.DELETE_CONSUMER_GROUP: Row(READ_TOPIC, g.DeleteGroup(*here, "g")),
        c.JOIN_CONSUMER_GROUP: Row(READ_TOPIC, g.JoinGroup(*here, "g")),
        c.LEAVE_CONSUMER_GROUP: Row(READ_TOPIC, g.LeaveGroup(*here, "g")),
        c.HELLO: Row(ANYONE),
        c.OPEN_PUBLISHER: Row(ANYONE, x.OpenPublisher(name="p", run="1")),
        c.STAGE: Row(
            SEND,
            x.Stage(
                x.StageHead(publisher=1, epoch=1, window=0),
                encode_send(*here, Partitioning.balanced(), [Message(b"x")]),
            ),
        ),
        c.CLOSE: Row(ANYONE, x.CloseWindow(publisher=1, epoch=1, previous=-1, window=0)),
        c.LIST_WINDOWS: Row(POLL, x.ListWindows(stream=stream, topic=topic)),
        c.SET_PUBLISHERS: Row(
            CHANGE_TOPIC, x.SetPublishers(stream=stream, topic=topic, publishers=("p",))
        ),
        c.RESET_AFTER: Row(
            CHANGE_TOPIC, x.ResetAfter(stream=stream, topic=topic, window=0, epoch=1)
        ),
        c.PURGE_TO: Row(CHANGE_TOPIC, x.PurgeTo(stream=stream, topic=topic, window=0)),
        c.GET_PUBLISHING: Row(SERVERS),
        c.GET_SHARDS: Row(ANYONE),
        c.MOVE_SHARD: Row(MANAGE_SERVERS, x.MoveShard(shard=1, worker="")),
        c.READ_TICKET: Row(POLL, x.ReadTicket(topics=(here,))),
    }


def flags_of(kind: Any) -> list[str]:
    return [f.name for f in fields(kind) if f.name not in ("stream_id", "topic_id", "topics")]


FLAGS = [
    *(("everywhere", name) for name in flags_of(u.GlobalPermissions)),
    *(("stream", name) for name in flags_of(u.StreamPermissions)),
    *(("topic", name) for name in flags_of(u.TopicPermissions)),
]


def only(level: str, name: str) -> u.Permissions:
    """Nothing but this one right; below the global level on stream 0, topic 0."""
    if level == "everywhere":
        return u.Permissions(u.GlobalPermissions(**{name: True}))
    if level == "stream":
        flag: dict[str, Any] = {name: True}
        return u.Permissions(streams=(u.StreamPermissions(0, **flag),))
    topic = u.TopicPermissions(0, **{name: True})
    return u.Permissions(streams=(u.StreamPermissions(0, topics=(topic,)),))


async def prepared(h: Harness, permissions: u.Permissions | None) -> Client:
    root = await h.root()
    for stream in ("s", "other"):
        await root.stream(stream)
        for topic in ("t", "other"):
            await root.topic(stream, topic)
            await root.call(c.CREATE_CONSUMER_GROUP, g.CreateGroup(stream, topic, "g"))
    ann = u.CreateUser("ann", "secret", u.UserStatus.ACTIVE, permissions)
    await root.call(c.CREATE_USER, ann)
    client = h.connect()
    await client.login("ann", "secret")
    return client


async def passes(h: Harness, client: Client, command: c.AnyCommand, request: Any) -> bool:
    """Whether it gets past the check. What is refused goes the whole way, through the bytes; what
    is allowed would change things, so for that the check itself is asked."""
    try:
        authorize(h.broker, client.session, command, request)
    except UnauthorizedError:
        assert await code_of(client.call(command, request)) == 41, command.name
        return False
    return True


def test_the_table_here_is_complete() -> None:
    opening = (c.PING, c.LOGIN_USER, c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, c.PRESENT_GRANT,
               c.SPEAK_FOR)  # fmt: skip
    without_login = {row.code for row in opening}
    classic = {code for code, row in c.SERVED.items() if not row.only_c}
    assert {row.code for row in rows("s", "t")} | without_login == classic
    assert len(FLAGS) == 10 + 6 + 4


@pytest.mark.parametrize(("level", "name"), FLAGS, ids=lambda part: part)
async def test_one_right_allows_what_it_should_and_no_more(level: str, name: str) -> None:
    async with opened() as h:
        ann = await prepared(h, only(level, name))
        # Where the right was given, beside it, and where nothing is at all.
        for place in (("s", "t"), ("s", "other"), ("other", "t"), ("s", "none"), ("none", "none")):
            reaches = {
                "everywhere": True,
                "stream": place[0] == "s",
                "topic": place == ("s", "t"),
            }[level]
            for command, row in rows(*place).items():
                expected = row.allowed.anyone or (name in getattr(row.allowed, level) and reaches)
                found = await passes(h, ann, command, row.request)
                assert found is expected, (command.name, place)


async def test_without_any_right_only_ones_own_things_are_allowed() -> None:
    async with opened() as h:
        ann = await prepared(h, None)
        for command, row in rows("s", "t").items():
            expected = row.allowed.anyone
            assert await passes(h, ann, command, row.request) is expected, command.name
        assert await passes(h, ann, c.GET_USER, u.GetUser("ann"))
        assert await passes(h, ann, c.GET_USER, u.GetUser(1))


async def test_without_a_login_every_command_is_refused() -> None:
    async with opened() as h:
        await prepared(h, None)
        stranger = h.connect()
        for command, row in rows("s", "t").items():
            assert await code_of(stranger.call(command, row.request)) == 40, command.name


async def test_root_may_do_everything() -> None:
    async with opened() as h:
        await prepared(h, None)
        root = await h.root()
        for command, row in rows("s", "t").items():
            assert await passes(h, root, command, row.request), command.name
