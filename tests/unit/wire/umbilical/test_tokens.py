"""Tokens in Hadoop's own layout; Hadoop's classes are asked in tests/integration."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError
from headrace.wire.umbilical import tokens
from headrace.wire.umbilical.tokens import Token, TokenIdentifier

NUMBERS = st.integers(-(2**63), 2**63 - 1)
IDENTIFIERS = st.builds(
    TokenIdentifier, st.text(), NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.text(), st.text()
)


@given(IDENTIFIERS)
def test_identifiers_round_trip(identifier: TokenIdentifier) -> None:
    assert tokens.decode_identifier(tokens.encode_identifier(identifier)) == identifier


@given(st.binary(max_size=200), st.binary(max_size=200), st.text(max_size=20))
def test_tokens_round_trip(identifier: bytes, password: bytes, service: str) -> None:
    token = Token(identifier, password, service=service)
    assert tokens.parse_token(tokens.format_token(token) + "\n") == token


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (-112, "90"),
        (128, "8f80"),
        (-113, "8770"),
        (1_700_000_000_000, "8a018bcfe56800"),
    ],
)
def test_numbers_are_hadoops(value: int, encoded: str) -> None:
    identifier = tokens.encode_identifier(TokenIdentifier("", value))
    assert identifier.hex() == "00000000" + encoded + "000000"


@given(st.binary(max_size=64))
def test_garbage_is_refused(data: bytes) -> None:
    for decode in (tokens.decode_identifier, lambda given: tokens.parse_token(given.hex())):
        try:
            decode(data)
        except RemoteProtocolError:
            continue


@pytest.mark.parametrize("text", ["", "=", "ä", "AA", "A" * 5_000, "AAAA AAAA"])
def test_not_a_token(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        tokens.parse_token(text)


def test_a_token_does_not_show_its_password() -> None:
    assert "secret" not in repr(Token(b"identifier", b"secret"))
