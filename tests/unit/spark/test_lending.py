"""What tasks get of what their driver holds."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headrace.errors import UnauthorizedError
from headrace.net.credentials import Grant, Scope, grant_bytes, make_grant, verify_grant
from headrace.pipeline.controller.container_credentials import GRANT_MS
from headrace.spark import server
from headrace.spark.options import Credentials, Target, parse_sink, parse_source
from headrace.spark.server import TASK_MS, lend_reading, lend_writing

SECRET = b"s" * 32
FAR_MS = 1 << 60
APPLICATION = Scope(
    exp=FAR_MS,
    holder="pipeline shop",
    reads=("shop/*",),
    writes=("shop/*",),
    publishers=("spark/*",),
)


@pytest.fixture
def in_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("HEADRACE_USERNAME", "HEADRACE_PASSWORD", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "grant"
    file.write_text(make_grant(SECRET, APPLICATION))
    monkeypatch.setenv("HEADRACE_TOKEN_FILE", str(file))
    return file


def lent_grant(credentials: Credentials) -> Grant:
    assert credentials.lent is not None
    _, _, token = credentials.resolve()
    return verify_grant(SECRET, grant_bytes(token), 0)


def sink() -> Target:
    return parse_sink({"topic": "shop/totals"}).target


def test_a_container_finds_its_grant_in_a_file_that_changes(in_container: Path) -> None:
    assert sink().credentials.resolve()[2] == in_container.read_text()
    in_container.write_text("headrace-grant-newer")
    assert sink().credentials.resolve()[2] == "headrace-grant-newer"


def test_whoever_names_a_user_means_that_user(
    in_container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "secret")
    own = parse_sink({"topic": "s/t", "username": "ann", "password": "env:MINE"}).target
    assert own.credentials.resolve() == ("ann", "secret", "")
    assert lend_writing(own, "spark/1") is own
    monkeypatch.setenv("HEADRACE_USERNAME", "bob")
    monkeypatch.setenv("HEADRACE_PASSWORD", "hidden")
    assert sink().credentials.resolve() == ("bob", "hidden", "")


def test_a_task_that_writes_gets_one_topic_and_one_publisher(in_container: Path) -> None:
    credentials = pickle.loads(pickle.dumps(lend_writing(sink(), "spark/1"))).credentials
    in_container.unlink()  # an executor elsewhere has no such file
    grant = lent_grant(credentials)
    assert grant.holder == "pipeline shop"
    assert grant.may_write("shop", "totals")
    assert not grant.may_write("shop", "orders")
    assert not grant.may_read("shop", "totals")
    assert grant.may_publish("spark/1")
    assert not grant.may_publish("spark/2")
    assert not grant.may_close
    assert grant.expires_ms < FAR_MS
    assert credentials.lent.text not in repr(credentials)


def test_a_task_that_reads_gets_the_topics_of_its_query(in_container: Path) -> None:
    options = parse_source(
        {"stream": "shop", "topic": "ord*", "payloadFormat": "json", "deadLetterTopic": "bad"},
        streaming=True,
    )
    credentials = lend_reading(options)
    assert credentials is not None
    grant = lent_grant(credentials)
    assert grant.may_read("shop", "orders")
    assert not grant.may_read("shop", "customers")
    assert grant.may_write("shop", "bad")
    assert not grant.may_write("shop", "orders")


def test_users_tasks_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TOKEN_FILE", raising=False)
    monkeypatch.setenv("HEADRACE_TOKEN", "iggypat-abc")
    assert lend_writing(sink(), "spark/1") == sink()
    assert lend_reading(parse_source({"topic": "s/t"}, streaming=True)) is None


def test_a_worker_keeps_the_newest_of_one_kind_and_few_kinds(in_container: Path) -> None:
    first = server.connect(lend_writing(sink(), "spark/1"))
    newer = lend_writing(sink(), "spark/1")
    assert server.connect(newer) is first
    assert first.remote._credentials is newer.credentials
    others = {id(server.connect(lend_writing(sink(), f"spark/job/{n}"))) for n in range(30)}
    assert len(others) == 30
    assert sum(key[2].lent is not None for key in server._servers) == server.LENT_KEPT


def test_a_task_cannot_lend_itself_more(in_container: Path) -> None:
    lent = lend_writing(sink(), "spark/1")
    grant = lent_grant(lend_writing(lent, "spark/*").credentials)
    assert not grant.may_publish("spark/2")
    with pytest.raises(UnauthorizedError):
        verify_grant(b"x" * 32, grant_bytes(lent.credentials.resolve()[2]), 0)
    assert TASK_MS < GRANT_MS * 3 // 4, "what a container has left at any time"
