"""Refusals as sentences: they name what the caller named."""

from __future__ import annotations

import pytest

from headrace.broker.catalogue import decisions, passwords
from headrace.client.refusals import refusal
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, UnauthorizedError
from headrace.wire.iggy.commands import TABLE
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.messages import consumers, topics, users
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Consumer, Partitioning

ORDERS = topics.GetTopic("shop", "orders")
ME = Consumer.single("me")
SEND = encode_send(
    "shop", "orders", Partitioning.to_partition(9), [Message(b"x")], origin_timestamp_us=1
)


@pytest.mark.parametrize(
    ("status", "command", "request_", "text"),
    [
        (1009, "DELETE_STREAM", topics.DeleteStream("nope"), "there is no stream 'nope'"),
        (1010, "GET_STREAM", topics.GetStream(7), "there is no stream 7"),
        (1012, "CREATE_STREAM", topics.CreateStream("shop"), "there is a stream 'shop' already"),
        (
            1012,
            "UPDATE_STREAM",
            topics.UpdateStream("old", "shop"),
            "there is a stream 'shop' already",
        ),
        (2010, "SEND_MESSAGES", SEND, "there is no topic shop/orders"),
        (
            2013,
            "UPDATE_TOPIC",
            topics.UpdateTopic("shop", "a", topics.Compression.NONE, 0, 0, 0, "orders"),
            "there is a topic shop/orders already",
        ),
        (3007, "SEND_MESSAGES", SEND, "shop/orders has no partition 9"),
        (3008, "SEND_MESSAGES", SEND, "shop/orders has no partitions, so nothing can be sent"),
        (
            5000,
            "DELETE_CONSUMER_GROUP",
            consumers.DeleteGroup("shop", "orders", "g"),
            "shop/orders has no group 'g'",
        ),
        (
            5004,
            "CREATE_CONSUMER_GROUP",
            consumers.CreateGroup("shop", "orders", "g"),
            "shop/orders has a group 'g' already",
        ),
        (
            3021,
            "DELETE_CONSUMER_OFFSET",
            consumers.DeleteConsumerOffset(ME, "shop", "orders", 2),
            "consumer me has stored no offset in partition 2 of shop/orders",
        ),
        (
            4100,
            "STORE_CONSUMER_OFFSET",
            consumers.StoreConsumerOffset(ME, "shop", "orders", 2, 10),
            "partition 2 of shop/orders has no message 10 yet",
        ),
        (20, "DELETE_USER", users.DeleteUser("nobody"), "there is no user 'nobody'"),
        (42, "LOGIN_USER", users.LoginUser("ann", "secret"), "unknown user 'ann', or wrong pass"),
        (46, "CREATE_USER", users.CreateUser("ann", "secret"), "there is a user 'ann' already"),
        (41, "SEND_MESSAGES", SEND, "this user may not send messages (shop/orders)"),
        (4022, "SEND_MESSAGES", SEND, "its payload may have 10,000,000 bytes"),
        (
            2019,
            "DELETE_PARTITIONS",
            topics.DeletePartitions("shop", "orders", 5),
            "shop/orders has fewer than 5 partitions",
        ),
        (12345, "PING", None, "the server refused to ping: error 12345 (error 12345)"),
    ],
)
def test_a_refusal_is_a_sentence(status: int, command: str, request_: object, text: str) -> None:
    error = refusal(status, command, request_)
    assert text in str(error)
    assert "secret" not in str(error)
    assert (error.code, error.command) == (status, command)


@pytest.mark.parametrize("status", [each for each in Status if each], ids=lambda one: one.name)
def test_every_refusal_of_every_request_has_a_text(status: Status) -> None:
    """Whatever a server answers to whatever, the text is whole."""
    for command in TABLE.values():
        for request in (ORDERS, SEND, users.GetUser("ann"), None):
            error = refusal(status, command.name, request)
            assert isinstance(error, HeadraceError)
            assert "None" not in str(error)
            assert "()" not in str(error)


def test_its_class_is_that_of_its_number() -> None:
    assert isinstance(refusal(1009, "GET_TOPICS", ORDERS), NotFoundError)
    assert isinstance(refusal(1012, "CREATE_STREAM", ORDERS), AlreadyExistsError)
    assert isinstance(refusal(41, "CREATE_STREAM", ORDERS), UnauthorizedError)


def test_bounds_are_those_of_the_broker() -> None:
    for status, (shortest, longest) in {
        43: decisions.USERNAME_BYTES,
        44: passwords.PASSWORD_BYTES,
        50: decisions.TOKEN_NAME_BYTES,
        1013: (1, decisions.NAME_BYTES_MAX),
        2014: (1, decisions.NAME_BYTES_MAX),
        5005: (1, decisions.NAME_BYTES_MAX),
    }.items():
        assert f"has {shortest} to {longest} bytes" in str(refusal(status, "X", None))
    assert f"1 to {decisions.PARTITIONS_MAX} " in str(refusal(2015, "X", None))
