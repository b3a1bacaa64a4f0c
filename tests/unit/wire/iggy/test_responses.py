"""Replies against bytes laid out by hand, field by field, from the protocol's description."""

from __future__ import annotations

import struct
from dataclasses import replace

import msgspec
import pytest

from headrace.errors import LocalProtocolError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.commands import TABLE, AnyCommand
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError
from headrace.wire.iggy.messages import consumers, system, topics, users
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages.extensions import (
    ServerHello,
    Ticket,
    TicketPartition,
    TicketTopic,
)
from headrace.wire.iggy.messages.messages import Placed, PolledMessages, SentMessages
from headrace.wire.iggy.messages.system import NodeRole, NodeStatus, TransportKind
from headrace.wire.iggy.messages.topics import NEVER_EXPIRES, UNLIMITED, Compression
from headrace.wire.iggy.user_headers import UserHeader, encode_headers

STREAM = topics.Stream(0, 11, 2, 33, 44, "s1")
STREAM_BYTES = struct.pack("<IQIQQ", 0, 11, 2, 33, 44) + b"\x02s1"
TOPIC = topics.Topic(1, 12, 3, NEVER_EXPIRES, Compression.NONE, UNLIMITED, 1, 55, 66, "topic")
TOPIC_BYTES = (
    struct.pack("<IQIQBQBQQ", 1, 12, 3, NEVER_EXPIRES, 1, UNLIMITED, 1, 55, 66) + b"\x05topic"
)
PARTITION = topics.PartitionInfo(2, 13, 1, 99, 1000, 100)
PARTITION_BYTES = struct.pack("<IQIQQQ", 2, 13, 1, 99, 1000, 100)
GROUP = consumers.Group(3, 4, 1, "g")
GROUP_BYTES = struct.pack("<III", 3, 4, 1) + b"\x01g"
MEMBER = consumers.GroupMember(0xFFFF_0001, (0, 2))
MEMBER_BYTES = struct.pack("<IIII", 0xFFFF_0001, 2, 0, 2)
USER = users.User(0, 14, users.UserStatus.ACTIVE, "iggy")
USER_BYTES = struct.pack("<IQB", 0, 14, 1) + b"\x04iggy"
CLIENT = system.ClientInfo(77, 0, TransportKind.TCP, "127.0.0.1:5", 1)
CLIENT_BYTES = struct.pack("<IIBI", 77, 0, 1, 11) + b"127.0.0.1:5" + struct.pack("<I", 1)
GLOBAL = users.GlobalPermissions(read_servers=True, send_messages=True)
GLOBAL_BYTES = b"\0\x01\0\0\0\0\0\0\0\x01"

STATS = system.Stats(
    *(1, 0.5, 25.0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17),
    *("host", "Linux", "12", "6.1", "0.8.0", system.semver("0.8.0")),
    (system.CacheMetrics(1, 2, 3, 90, 10, 0.5),),
    *(20, 21, 22),
)
STATS_HEAD = struct.pack(
    "<IffQQQQQQQQIIIIQII", 1, 0.5, 25.0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17
)
STATS_TEXTS = b"".join(
    struct.pack("<I", len(text)) + text for text in (b"host", b"Linux", b"12", b"6.1", b"0.8.0")
)
STATS_CACHE = struct.pack("<IIIIIQQf", 8000, 1, 1, 2, 3, 90, 10, 0.5)
STATS_BYTES = STATS_HEAD + STATS_TEXTS + STATS_CACHE + struct.pack("<IQQ", 20, 21, 22)

CLUSTER = system.ClusterMetadata(
    "headrace",
    (
        system.ClusterNode(
            "n1", "10.0.0.1", 8090, 8080, 3000, 8092, NodeRole.FOLLOWER, NodeStatus.STARTING
        ),
    ),
)
CLUSTER_BYTES = b"\x08\0\0\0headrace\x01\0\0\0\x02\0\0\0n1\x08\0\0\x0010.0.0.1" + struct.pack(
    "<HHHHBB", 8090, 8080, 3000, 8092, 1, 1
)
TICKET = Ticket(
    cluster="c",
    ticket=b"t\0",
    expires_ms=5,
    placement="h:1",
    nodes=("h:2",),
    topics=(
        TicketTopic(
            stream="s",
            topic="t",
            stream_id=0,
            topic_id=1,
            uid=9,
            partitions=(
                TicketPartition(partition=0, generation=1, sbp_stream=7, start=10, next=20),
            ),
        ),
    ),
)
TICKET_BYTES = msgspec.msgpack.encode(
    {
        "cluster": "c",
        "ticket": b"t\0",
        "expires_ms": 5,
        "placement": "h:1",
        "nodes": ["h:2"],
        "topics": [
            {
                "stream": "s",
                "topic": "t",
                "stream_id": 0,
                "topic_id": 1,
                "uid": 9,
                "partitions": [
                    {"partition": 0, "generation": 1, "sbp_stream": 7, "start": 10, "next": 20}
                ],
            }
        ],
    }
)

CASES: list[tuple[AnyCommand, object, bytes]] = [
    (c.GET_STATS, STATS, STATS_BYTES),
    (c.GET_SNAPSHOT_FILE, system.Snapshot(b"PK\x03\x04"), b"PK\x03\x04"),
    (c.GET_CLUSTER_METADATA, CLUSTER, CLUSTER_BYTES),
    (
        c.GET_ME,
        system.ClientDetails(CLIENT, (system.ClientGroup(1, 2, 3),)),
        CLIENT_BYTES + struct.pack("<III", 1, 2, 3),
    ),
    (
        c.GET_CLIENT,
        system.ClientDetails(CLIENT, (system.ClientGroup(1, 2, 3),)),
        CLIENT_BYTES + struct.pack("<III", 1, 2, 3),
    ),
    (c.GET_CLIENTS, system.Clients((CLIENT, CLIENT)), CLIENT_BYTES * 2),
    (c.GET_USER, users.UserDetails(USER), USER_BYTES + bytes(4)),
    (
        c.CREATE_USER,
        users.UserDetails(USER, users.Permissions(GLOBAL)),
        USER_BYTES + b"\x01\x0b\0\0\0" + GLOBAL_BYTES + b"\0",
    ),
    (c.GET_USERS, users.Users((USER, USER)), USER_BYTES * 2),
    (c.LOGIN_USER, users.Identity(5), b"\x05\0\0\0"),
    (c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, users.Identity(5), b"\x05\0\0\0"),
    (
        c.GET_PERSONAL_ACCESS_TOKENS,
        users.PersonalAccessTokens((users.PersonalAccessToken("tok", 9),)),
        b"\x03tok" + struct.pack("<Q", 9),
    ),
    (c.CREATE_PERSONAL_ACCESS_TOKEN, users.RawPersonalAccessToken("abc"), b"\x03abc"),
    (
        c.GET_CONSUMER_OFFSET,
        consumers.ConsumerOffset(1, 99, 42),
        struct.pack("<IQQ", 1, 99, 42),
    ),
    (c.GET_STREAM, topics.StreamDetails(STREAM, (TOPIC, TOPIC)), STREAM_BYTES + TOPIC_BYTES * 2),
    (c.GET_STREAMS, topics.Streams((STREAM, STREAM)), STREAM_BYTES * 2),
    (c.CREATE_STREAM, topics.StreamDetails(STREAM), STREAM_BYTES),
    (c.GET_TOPIC, topics.TopicDetails(TOPIC, (PARTITION,)), TOPIC_BYTES + PARTITION_BYTES),
    (c.GET_TOPICS, topics.Topics((TOPIC,)), TOPIC_BYTES),
    (c.CREATE_TOPIC, topics.TopicDetails(TOPIC, (PARTITION,)), TOPIC_BYTES + PARTITION_BYTES),
    (c.GET_CONSUMER_GROUP, consumers.GroupDetails(GROUP, (MEMBER,)), GROUP_BYTES + MEMBER_BYTES),
    (c.GET_CONSUMER_GROUPS, consumers.Groups((GROUP, GROUP)), GROUP_BYTES * 2),
    (c.CREATE_CONSUMER_GROUP, consumers.GroupDetails(GROUP), GROUP_BYTES),
    (
        c.HELLO,
        ServerHello(version="1", cluster="u", node_id=2, features=("READ_TICKET",)),
        msgspec.msgpack.encode(
            {
                "server": "headrace",
                "version": "1",
                "cluster": "u",
                "node_id": 2,
                "features": ["READ_TICKET"],
            }
        ),
    ),
    (
        c.GET_PUBLISHING,
        x.PublishingFigures(publishers=2, staged_messages=7),
        msgspec.msgpack.encode(
            {
                "publishers": 2,
                "publishers_max": 0,
                "staged_messages": 7,
                "staged_bytes": 0,
                "staged_oldest_ms": 0,
                "staged_ms_max": 0,
                "publishers_expired": 0,
            }
        ),
    ),
    (
        c.GET_SHARDS,
        x.ShardMap(
            shards=(x.ShardLeader(shard=0, worker="w", epoch=3, partitions=2),),
            workers=(x.WorkerFigures(name="w", number=1, host="h", address="h:1", shards=1),),
        ),
        msgspec.msgpack.encode(
            {
                "shards": [{"shard": 0, "worker": "w", "epoch": 3, "partitions": 2, "pinned": ""}],
                "workers": [
                    {
                        "name": "w",
                        "number": 1,
                        "host": "h",
                        "address": "h:1",
                        "coordinates": False,
                        "shards": 1,
                        "partitions": 0,
                        "connections": 0,
                        "requests": 0,
                        "requests_passed_on": 0,
                        "requests_taken_in": 0,
                        "loop_delay_ms": 0.0,
                        "memory_bytes": 0,
                        "cpu_percent": 0.0,
                    }
                ],
            }
        ),
    ),
    (
        c.MOVE_SHARD,
        x.ShardMoved(shard=5, worker="v", pinned="w"),
        msgspec.msgpack.encode({"shard": 5, "worker": "v", "pinned": "w"}),
    ),
    (
        c.OPEN_PUBLISHER,
        x.PublisherOpened(publisher=3, epoch=2, last_window=5),
        msgspec.msgpack.encode({"publisher": 3, "epoch": 2, "last_window": 5}),
    ),
    (
        c.STAGE,
        x.Staged(span=x.StagedSpan(40, 2, 7, 1, 0)),
        msgspec.msgpack.encode({"span": [40, 2, 7, 1, 0]}),
    ),
    (
        c.CLOSE,
        x.WindowClosed(
            window=5, last_window=6, already=True, runs=(x.PublishedRun(7, 1, 0, 9, 2),)
        ),
        msgspec.msgpack.encode(
            {"window": 5, "last_window": 6, "already": True, "runs": [[7, 1, 0, 9, 2]]}
        ),
    ),
    (
        c.LIST_WINDOWS,
        x.WindowsListed(
            cluster="u",
            uid=7,
            closed=5,
            complete=4,
            purged=1,
            resets=0,
            publishers=(
                x.ListedPublisher(
                    name="a",
                    partition=0,
                    last_window=6,
                    windows=(x.ListedWindow(4, 70, (x.WindowSpan(0, 0, 9, 2, 300),), b"i"),),
                ),
            ),
        ),
        msgspec.msgpack.encode(
            {
                "cluster": "u",
                "uid": 7,
                "closed": 5,
                "complete": 4,
                "purged": 1,
                "resets": 0,
                "publishers": [
                    {
                        "name": "a",
                        "partition": 0,
                        "last_window": 6,
                        "ended": False,
                        "windows": [[4, 70, [[0, 0, 9, 2, 300]], b"i"]],
                    }
                ],
            }
        ),
    ),
    (c.READ_TICKET, TICKET, TICKET_BYTES),
]


@pytest.mark.parametrize(
    ("command", "response", "laid_out"), CASES, ids=[command.name for command, _, _ in CASES]
)
def test_response(command: AnyCommand, response: object, laid_out: bytes) -> None:
    assert b"".join(command.encode_response(response)) == laid_out
    assert command.decode_response(laid_out) == response


def _block(*options: UserHeader) -> bytes:
    data = encode_headers(options)
    return struct.pack("<I", len(data)) + data


GIVEN, DERIVED = UserHeader.of("durability", "persisted"), UserHeader.of("segment_size", b"\1")
TOPIC_C = replace(TOPIC, replication_factor=0, options=(GIVEN,), derived=(DERIVED, GIVEN))
TOPIC_C_BYTES = (
    struct.pack("<IQIQBQQQ", 1, 12, 3, NEVER_EXPIRES, 1, UNLIMITED, 55, 66)
    + b"\x05topic"
    + _block(GIVEN)
    + _block(DERIVED, GIVEN)
)
STREAM_C = replace(STREAM, options=(GIVEN,))
STREAM_C_BYTES = STREAM_BYTES + _block(GIVEN)
USER_C = replace(USER, options=(GIVEN,))

CASES_C: list[tuple[AnyCommand, object, bytes]] = [
    (
        c.DESCRIBE_OPTIONS,
        system.DescribedOptions((system.OptionInfo("k", 2, b"none", "what it does"),)),
        b"\1\0\0\0\1k\2\4\0\0\0none\x0c\0\0\0what it does",
    ),
    (
        c.LOGIN_REGISTER,
        users.Registered(5, 2**40, 0x2C00, "0.1"),
        struct.pack("<IQI", 5, 2**40, 0x2C00) + b"\x030.1",
    ),
    (
        c.LOGIN_REGISTER_WITH_TOKEN,
        users.Registered(5, 1, 0x2C00, "0.1"),
        struct.pack("<IQI", 5, 1, 0x2C00) + b"\x030.1",
    ),
    (
        c.SYNC_CONSUMER_GROUP,
        consumers.GroupAssignment(2**33, (0, 2)),
        struct.pack("<QIII", 2**33, 2, 0, 2),
    ),
    (
        c.SEND_MESSAGES,
        SentMessages((Placed(1, 2, 3, 2**40),)),
        struct.pack("<IIIIQ", 1, 1, 2, 3, 2**40),
    ),
    (c.GET_TOPICS, topics.Topics((TOPIC_C,) * 2), b"\2\0\0\0" + TOPIC_C_BYTES * 2),
    (c.GET_TOPIC, topics.TopicDetails(TOPIC_C, (PARTITION,)), TOPIC_C_BYTES + PARTITION_BYTES),
    (c.GET_STREAM, topics.StreamDetails(STREAM_C, (TOPIC_C,)), STREAM_C_BYTES + TOPIC_C_BYTES),
    (c.GET_STREAMS, topics.Streams((STREAM_C,)), STREAM_C_BYTES),
    (c.GET_USER, users.UserDetails(USER_C), USER_BYTES + _block(GIVEN) + bytes(4)),
    (c.GET_USERS, users.Users((USER_C, USER_C)), (USER_BYTES + _block(GIVEN)) * 2),
    (c.GET_STATS, STATS, STATS_BYTES),
    (c.GET_CLUSTER_METADATA, CLUSTER, CLUSTER_BYTES),
]


@pytest.mark.parametrize(
    ("command", "response", "laid_out"), CASES_C, ids=[command.name for command, _, _ in CASES_C]
)
def test_response_in_dialect_c(command: AnyCommand, response: object, laid_out: bytes) -> None:
    assert b"".join(command.encode_response(response, Dialect.C)) == laid_out
    assert command.decode_response(laid_out, Dialect.C) == response


def test_a_send_is_answered_with_nothing_in_other_dialects() -> None:
    for dialect in (Dialect.A, Dialect.B1, Dialect.B2):
        assert c.SEND_MESSAGES.encode_response(SentMessages((Placed(1, 2, 3, 4),)), dialect) == []
    assert c.SEND_MESSAGES.decode_response(b"", Dialect.C) == SentMessages(())


def test_every_command_with_a_reply_is_laid_out_here() -> None:
    with_reply = {row.name for row in TABLE.values() if row.response is not system.Empty}
    only_c = {row.name for row in TABLE.values() if row.only_c} | {"SEND_MESSAGES"}
    # A poll's reply holds messages and is not compared by value: the next test.
    assert with_reply - only_c == {command.name for command, _, _ in CASES} | {"POLL_MESSAGES"}
    assert only_c <= {command.name for command, _, _ in CASES_C}


def test_poll_response() -> None:
    pieces = c.POLL_MESSAGES.encode_response(PolledMessages(3, 99, 1, (b"abc", b"def")))
    assert pieces == [struct.pack("<IQI", 3, 99, 1), b"abc", b"def"]
    decoded = c.POLL_MESSAGES.decode_response(b"".join(pieces))
    assert (decoded.partition, decoded.current_offset, decoded.count) == (3, 99, 1)
    assert b"".join(decoded.slices) == b"abcdef"


def test_an_empty_poll_still_has_sixteen_bytes() -> None:
    assert b"".join(c.POLL_MESSAGES.encode_response(PolledMessages(0, 0, 0))) == bytes(16)
    with pytest.raises(DecodeError):
        c.POLL_MESSAGES.decode_response(bytes(15))


def test_missing_things_are_empty_replies() -> None:
    optional = {row.name for row in TABLE.values() if row.optional}
    assert optional == {
        "GET_CLIENT",
        "GET_USER",
        "GET_CONSUMER_OFFSET",
        "GET_STREAM",
        "GET_TOPIC",
        "GET_CONSUMER_GROUP",
    }
    for row in TABLE.values():
        if row.optional:
            assert row.encode_response(None) == []
            assert row.decode_response(b"") is None


def test_created_things_are_never_empty() -> None:
    for row in TABLE.values():
        if row.name.startswith("CREATE_") and row.response is not system.Empty:
            with pytest.raises(DecodeError):
                row.decode_response(b"")


def test_stats_of_older_servers_lack_the_tail() -> None:
    older = STATS_HEAD + STATS_TEXTS + STATS_CACHE
    assert system.Stats.decode(older).threads_count == 0
    assert len(STATS_HEAD) == 108


def test_dialect_a_numbers_from_one() -> None:
    assert users.Identity(0).encode(Dialect.A) == b"\x01\0\0\0"
    assert topics.Streams((STREAM,)).encode(Dialect.A)[:4] == b"\x01\0\0\0"
    details = topics.TopicDetails(TOPIC, (PARTITION,))
    encoded = details.encode(Dialect.A)
    assert encoded[:4] == b"\x02\0\0\0"
    assert encoded[-40:-36] == b"\x03\0\0\0"
    assert topics.TopicDetails.decode(encoded, Dialect.A) == details


def test_who_is_not_logged_in() -> None:
    stranger = system.ClientInfo(1, None, TransportKind.TCP, "", 0)
    assert stranger.encode(Dialect.B2)[4:8] == b"\xff\xff\xff\xff"
    assert stranger.encode(Dialect.A)[4:8] == bytes(4)
    for dialect in (Dialect.A, Dialect.B1, Dialect.B2):
        assert system.ClientInfo.decode(stranger.encode(dialect), dialect) == stranger


def test_cluster_metadata_of_dialect_a() -> None:
    node = b"\0\0\0\0\x02\0\0\0n1\x0d\0\0\x0010.0.0.1:8090\x01\x01"
    laid_out = b"\x08\0\0\0headrace\0\0\0\0\x01\x01\0\0\0" + node
    assert CLUSTER.encode(Dialect.A) == laid_out
    decoded = system.ClusterMetadata.decode(laid_out, Dialect.A)
    assert (decoded.nodes[0].ip, decoded.nodes[0].tcp_port) == ("10.0.0.1", 8090)
    with pytest.raises(DecodeError):
        system.ClusterMetadata.decode(laid_out.replace(b":8090", b":port"), Dialect.A)


def test_details_must_agree_with_their_count() -> None:
    with pytest.raises(LocalProtocolError):
        system.ClientDetails(CLIENT, ()).encode()


def test_numbers_that_do_not_fit_are_ours_to_refuse() -> None:
    with pytest.raises(LocalProtocolError):
        users.Identity(2**32).encode()
    with pytest.raises(LocalProtocolError):
        topics.Stream(0, 0, 0, 0, 0, "x" * 256).encode()
