"""Addresses of servers as one text."""

from __future__ import annotations

import pytest

from headrace.client.url import ServerUrl, TlsOptions, parse_url
from headrace.errors import ConfigError

ENVIRONMENT = {
    "HEADRACE_ADDRESS": "broker:9000",
    "HEADRACE_USERNAME": "etl",
    "HEADRACE_PASSWORD": "s3",
}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("", ServerUrl()),
        ("headrace://example", ServerUrl(host="example")),
        ("example:9", ServerUrl(host="example", port=9)),
        (
            "headrace://etl:p%40ss@example:9",
            ServerUrl(host="example", port=9, username="etl", password="p@ss"),
        ),
        ("iggy://[::1]:7/", ServerUrl(host="::1", port=7)),
        ("headrace://h?token=abc", ServerUrl(host="h", token="abc")),
        ("headrace+tls://h", ServerUrl(host="h", tls=TlsOptions(enabled=True))),
        (
            "headrace://h?ca=/ca.pem&server_name=broker",
            ServerUrl(host="h", tls=TlsOptions(enabled=True, ca="/ca.pem", server_name="broker")),
        ),
    ],
)
def test_a_url_says_where_and_as_whom(url: str, expected: ServerUrl) -> None:
    assert parse_url(url, {}) == expected


def test_the_environment_fills_in_what_the_url_leaves_out() -> None:
    found = parse_url("", ENVIRONMENT)
    assert (str(found), found.username, found.password) == ("broker:9000", "etl", "s3")
    found = parse_url("headrace://other", ENVIRONMENT)
    assert (str(found), found.username) == ("other:8090", "etl")
    # Whoever names a user does not mean the environment's token.
    assert parse_url("headrace://me:x@h", {"HEADRACE_TOKEN": "t"}).token == ""
    assert parse_url("headrace://h", {"HEADRACE_TOKEN": "t"}).token == "t"


@pytest.mark.parametrize(
    "url",
    ["http://h", "headrace://", "headrace://h:x", "headrace://u:secret@h/path", "headrace://h?x=1"],
)
def test_what_is_no_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_url(url, {})
    assert "secret" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    assert "hidden" not in repr(parse_url("headrace://u:hidden@h?token=hidden", {}))
