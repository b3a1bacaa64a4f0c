"""What an error says to do next fits what went wrong, and names commands that exist."""

from __future__ import annotations

import json
import re

import pytest

from headrace import errors as e
from headrace.cli.advice import _LISTS, advice, report
from headrace.client.refusals import refusal
from headrace.wire.iggy.messages.topics import GetTopic
from headrace.wire.iggy.messages.users import DeleteUser
from tests.cli_page import commands

ORDERS = GetTopic("shop", "orders")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (refusal(1009, "GET_TOPIC", ORDERS), "`headrace stream list`"),
        (refusal(2010, "GET_TOPIC", ORDERS), "`headrace topic list`"),
        (refusal(20, "DELETE_USER", DeleteUser("x")), "`headrace user list`"),
        (refusal(3008, "SEND_MESSAGES", ORDERS), "`headrace partition add shop/orders`"),
        (refusal(13000, "SEND_MESSAGES", ORDERS), "`headrace verify`"),
        (refusal(12001, "SEND_MESSAGES", ORDERS), "Try again"),
        (refusal(41, "SEND_MESSAGES", ORDERS), "`headrace permission list`"),
        (refusal(42, "LOGIN_USER", None), "--username"),
        (e.NotFoundError("shop/orders has no group 'g'"), "`headrace group list STREAM/TOPIC`"),
        (e.NotFoundError("there is no pipeline 'x'"), "`headrace pipeline list`"),
        (e.NotFoundError("there is no container 'x'"), "`headrace container list NAME`"),
        (e.NotFoundError("there is no token 'x'"), "`headrace token list`"),
        (e.UnavailableError("cannot connect to h:1: connection refused"), "`headrace up`"),
        (e.UnavailableError("http://h:1: connection refused"), "--http"),
        (e.UnavailableError("what listens on h:1 is not the Iggy port"), "Iggy clients"),
        (e.RemoteProtocolError("TLS handshake failed: self-signed"), "--tls-ca"),
        (e.LockedError("it is in use"), "--data-dir"),
        (e.DeadlineError("h:1 did not answer GET_STREAMS within 10 s"), "try again"),
    ],
)
def test_advice_fits(error: e.HeadraceError, says: str) -> None:
    found = advice(error)
    assert says in found
    if isinstance(error, e.NotFoundError):
        assert found.count("`headrace") == 1, "one list, that of what was missing"


@pytest.mark.parametrize(
    "error",
    [
        e.NotFoundError("there is no client 9; see `headrace client list`"),
        e.NotFoundError("line 3 has no payload"),
        e.InvalidArgumentError("nonsense"),
        refusal(1012, "CREATE_STREAM", ORDERS),
        refusal(42, "CHANGE_PASSWORD", None),
    ],
)
def test_no_advice_is_better_than_another_thing_s(error: e.HeadraceError) -> None:
    assert advice(error) == ""


def test_lists_are_commands() -> None:
    known = {name for name, _ in commands()}
    for text in _LISTS.values():
        words = re.findall(r"[a-z-]+", text)
        assert " ".join(words) in known


def test_a_file_is_named_first() -> None:
    error = e.StorageError("Permission denied", path="/data/log", errno=13)
    text, status = report(error, as_json=False)
    assert text.startswith("headrace: /data/log: permission denied\n")
    assert (status, "--data-dir" in text) == (1, True)


def test_programs_get_kind_number_and_fields() -> None:
    text, status = report(refusal(1012, "CREATE_STREAM", ORDERS), as_json=True)
    found = json.loads(text)
    assert status == 1
    assert (found["kind"], found["code"], found["name"], found["command"]) == (
        "AlreadyExistsError", 1012, "stream_name_already_exists", "CREATE_STREAM",
    )  # fmt: skip
    text, status = report(e.ConfigError("no", setting="host"), as_json=True)
    assert (json.loads(text)["fields"], status) == ({"setting": "host"}, 2)
