"""Log lines of logins and administration: who, from where, what, how it ended, and no secret."""

from __future__ import annotations

import io
import logging
import re
from typing import Any

import pytest

from headrace.broker.sessions import audit
from headrace.observability.logging import make_formatter
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import topics as t
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import DeleteStream
from tests.unit.broker.harness import code_of, opened


class Lines:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "headrace.audit")

    def take(self) -> list[dict[str, Any]]:
        found: list[Any] = [r.msg for r in self._caplog.records if r.name == "headrace.audit"]
        self._caplog.clear()
        # structlog hands its fields on as they are; the formatter makes a line of them.
        return [{k: v for k, v in line.items() if k != "event"} for line in found]


async def test_who_did_what(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as h:
        lines = Lines(caplog)
        root = await h.root()
        (login,) = lines.take()
        assert login == {
            "command": "LOGIN_USER",
            "address": root.session.address,
            "by": "iggy",
            "outcome": "ok",
            "login": "silent",
        }
        await root.stream()
        await root.topic(expiry=5_000_000)
        created, topic = lines.take()
        assert (created["command"], created["by"], created["name"]) == (
            "CREATE_STREAM",
            "iggy",
            "s",
        )
        assert (topic["stream"], topic["name"], topic["message_expiry_us"]) == ("s", "t", 5_000_000)
        granted = u.Permissions(
            u.GlobalPermissions(read_users=True),
            (u.StreamPermissions(0, topics=(u.TopicPermissions(0, poll_messages=True),)),),
        )
        await root.call(c.CREATE_USER, u.CreateUser("ann", "secret", permissions=granted))
        (user,) = lines.take()
        assert user["username"] == "ann"
        assert user["granted"] == {
            "everywhere": ["read_users"],
            "stream 0": [],
            "stream 0 topic 0": ["poll_messages"],
        }
        await root.send(b"x")
        await root.poll()
        await root.call(c.GET_STATS, Empty())
        assert lines.take() == [], "reading and writing is not administration"
        await root.call(c.LOGOUT_USER, Empty())
        assert [line["by"] for line in lines.take()] == ["iggy"]


async def test_refusals(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as h:
        root = await h.root()
        await root.call(c.CREATE_USER, u.CreateUser("ann", "secret"))
        lines = Lines(caplog)
        ann = h.connect()
        assert await code_of(ann.login("ann", "wrong")) == 42
        (line,) = lines.take()
        assert (line["by"], line["outcome"], line["error"]) == ("ann", "refused", 42)
        assert await code_of(ann.call(c.DELETE_STREAM, DeleteStream("s"))) == 40
        assert lines.take() == [], "strangers cannot fill the log"
        await ann.login("ann", "secret")
        assert await code_of(ann.call(c.DELETE_TOPIC, t.DeleteTopic("s", "t"))) == 41
        _, line = lines.take()
        assert (line["by"], line["command"], line["error"]) == ("ann", "DELETE_TOPIC", 41)
        assert await code_of(root.call(c.DELETE_STREAM, DeleteStream("none"))) == 1009
        (line,) = lines.take()
        assert (line["stream"], line["outcome"], line["error"]) == ("none", "refused", 1009)
        await root.call(c.DELETE_USER, u.DeleteUser("ann"))
        (line,) = lines.take()
        assert (line["by"], line["user"]) == ("iggy", "ann")


async def test_no_line_holds_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    async with opened() as h:
        lines = Lines(caplog)
        root = await h.root()
        await root.call(c.CREATE_USER, u.CreateUser("ann", "hush one"))
        change = u.ChangePassword("ann", "hush one", "hush two")
        await root.call(c.CHANGE_PASSWORD, change)
        made = u.CreatePersonalAccessToken("laptop", 0)
        token = (await root.call(c.CREATE_PERSONAL_ACCESS_TOKEN, made)).token
        by_token = h.connect()
        login = u.LoginWithPersonalAccessToken(token)
        await by_token.call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login)
        assert await code_of(h.connect().login("ann", "hush three")) == 42
        found = lines.take()
        assert [line["command"] for line in found] == [
            "LOGIN_USER",
            "CREATE_USER",
            "CHANGE_PASSWORD",
            "CREATE_PERSONAL_ACCESS_TOKEN",
            "LOGIN_WITH_PERSONAL_ACCESS_TOKEN",
            "LOGIN_USER",
        ]
        assert found[4]["by"] == "iggy"
        assert "hush" not in repr(found)
        assert token not in repr(found)


def test_everything_that_changes_something_lasting_is_audited() -> None:
    quiet = {
        "PING", "GET_STATS", "GET_CLUSTER_METADATA", "GET_ME", "GET_CLIENT", "GET_CLIENTS",
        "GET_USER", "GET_USERS", "GET_PERSONAL_ACCESS_TOKENS", "POLL_MESSAGES", "SEND_MESSAGES",
        "FLUSH_UNSAVED_BUFFER", "GET_CONSUMER_OFFSET", "STORE_CONSUMER_OFFSET",
        "DELETE_CONSUMER_OFFSET", "GET_STREAM", "GET_STREAMS", "GET_TOPIC", "GET_TOPICS",
        "GET_CONSUMER_GROUP", "GET_CONSUMER_GROUPS", "JOIN_CONSUMER_GROUP", "LEAVE_CONSUMER_GROUP",
        "HELLO", "READ_TICKET", "OPEN_PUBLISHER", "STAGE", "CLOSE", "LIST_WINDOWS",
        "DESCRIBE_OPTIONS", "SYNC_CONSUMER_GROUP", "PRESENT_GRANT", "SPEAK_FOR",
        "GET_PUBLISHING", "GET_SHARDS",
    }  # fmt: skip
    assert {row.name for code, row in c.SERVED.items() if code not in audit.AUDITED} == quiet


async def test_nobody_forges_a_line_by_a_name() -> None:
    """As an operator reads it: a line for each thing that was done, and no other."""
    lie = "2026-01-01T00:00:00.000000Z [info     ] audit [headrace.audit] by=iggy outcome=ok"
    output, handler = io.StringIO(), logging.StreamHandler()
    handler.setStream(output)
    handler.setFormatter(make_formatter("text", colors=True))
    log = logging.getLogger("headrace.audit")
    log.addHandler(handler)
    level, before = log.level, log.propagate
    log.setLevel(logging.INFO)
    try:
        async with opened() as h:
            root = await h.root()
            await root.stream(f"s\n{lie}")
            await root.topic(f"s\n{lie}", f"t\x1b[1A\x1b[2K{lie}")
            assert await code_of(h.connect().login(f"eve\r\n{lie[:40]}", "x")) == 42
            assert (
                await code_of(root.call(c.DELETE_STREAM, DeleteStream(f"\x9b2J\u2028{lie}"))) != 0
            )
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = before
    lines = re.sub(r"\x1b\[\d+m", "", output.getvalue()).splitlines()
    assert len(lines) == 5
    assert not any(line.startswith(lie[:10]) for line in lines)
    assert all(line.isprintable() for line in lines)
