"""What a container of a pipeline shows the broker, and what it hands on to its tasks."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import UnauthorizedError
from headrace.net.credentials import (
    EVERYTHING,
    GRANT_BYTES_MAX,
    Grant,
    Scope,
    exactly,
    grant_bytes,
    is_grant,
    make_grant,
    narrow_grant,
    verify_grant,
)

SECRET = b"s" * 32
SHOP = Scope(
    exp=1_000,
    holder="pipeline shop",
    reads=("shop/orders", "_pipeline.shop/*"),
    writes=("shop/totals", "_pipeline.shop/*"),
    publishers=("pipeline/shop/*", "spark/*"),
)


def verified(text: str, now_ms: int = 0) -> Grant:
    assert is_grant(text)
    return verify_grant(SECRET, grant_bytes(text), now_ms)


def test_a_grant_allows_what_its_scope_says_and_no_more() -> None:
    grant = verified(make_grant(SECRET, SHOP))
    assert grant.holder == "pipeline shop"
    assert grant.may_read("shop", "orders")
    assert not grant.may_read("shop", "totals")
    assert grant.may_write("shop", "totals")
    assert not grant.may_write("shop", "orders")
    assert grant.may_read("_pipeline.shop", "anything")
    assert grant.knows_stream("shop")
    assert not grant.knows_stream("other")
    assert grant.may_publish("pipeline/shop/valid/0")
    assert not grant.may_publish("pipeline/other/valid/0")
    assert grant.may_close


def test_stream_and_topic_are_matched_apart() -> None:
    """A stream may be called `shop/orders`: nobody's topic becomes readable by its name."""
    grant = verified(make_grant(SECRET, Scope(exp=1, reads=("shop/*",))))
    assert grant.may_read("shop", "a/b")
    assert not grant.may_read("shop/a", "b")


def test_a_name_with_wildcards_in_it_means_itself() -> None:
    grant = verified(make_grant(SECRET, Scope(exp=1, reads=(f"s/{exactly('a*[b]?')}",))))
    assert grant.may_read("s", "a*[b]?")
    assert not grant.may_read("s", "axx[b]y")


def test_a_narrower_grant_allows_what_all_of_its_scopes_do() -> None:
    task = Scope(exp=500, reads=(), writes=(EVERYTHING,), publishers=("spark/1/*",), closes=False)
    grant = verified(narrow_grant(make_grant(SECRET, SHOP), task))
    assert grant.holder == "pipeline shop"
    assert grant.expires_ms == 500
    assert grant.may_write("shop", "totals")
    assert not grant.may_write("shop", "orders"), "wider than the first"
    assert not grant.may_read("shop", "orders")
    assert grant.may_publish("spark/1/x")
    assert not grant.may_publish("spark/2/x")
    assert not grant.may_close


def test_a_scope_cannot_be_taken_away_or_changed() -> None:
    task = Scope(exp=500, publishers=("spark/1/*",), closes=False)
    narrow = grant_bytes(narrow_grant(make_grant(SECRET, SHOP), task))
    scopes, mac = msgspec.msgpack.decode(narrow)
    wider = msgspec.msgpack.encode(Scope(exp=1_000, holder="root", reads=("*",), writes=("*",)))
    for forged in (
        [scopes[:1], mac],
        [scopes[::-1], mac],
        [[wider], mac],
        [[wider, *scopes], mac],
        [[scopes[0], wider], mac],
        [[], b""],
        [[], SECRET[:0]],
        [scopes * 3, mac],
    ):
        with pytest.raises(UnauthorizedError):
            verify_grant(SECRET, msgspec.msgpack.encode(forged), 0)
    with pytest.raises(UnauthorizedError):
        verify_grant(b"x" * 32, narrow, 0)


def test_it_ends_with_the_first_of_its_scopes() -> None:
    text = narrow_grant(make_grant(SECRET, SHOP), Scope(exp=2_000))
    verified(text, 999)
    with pytest.raises(UnauthorizedError, match="expired"):
        verified(text, 1_000)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff" * 40, b"x" * (GRANT_BYTES_MAX + 1)])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(UnauthorizedError):
        verify_grant(SECRET, data, 0)


def test_one_that_no_login_could_take_is_not_made() -> None:
    with pytest.raises(UnauthorizedError, match="too long"):
        make_grant(SECRET, Scope(exp=1, reads=tuple(f"s/{n:04}" for n in range(2_000))))
