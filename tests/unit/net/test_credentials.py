"""Credentials: what proves what, and what proves nothing."""

from __future__ import annotations

import hashlib
import hmac

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import UnauthorizedError
from headrace.net.credentials import NodeCredential, Ticket, make_ticket, node_credential, verify

SECRET = bytes(range(32))
OTHER = bytes(32)


def test_node_credential() -> None:
    credential = node_credential(SECRET)
    assert credential == b"node:" + hmac.new(SECRET, b"node", hashlib.sha256).digest()
    assert verify(SECRET, credential, 0) == NodeCredential()
    with pytest.raises(UnauthorizedError):
        verify(OTHER, credential, 0)
    with pytest.raises(UnauthorizedError):
        verify(SECRET, credential[:-1], 0)


def test_ticket() -> None:
    credential = make_ticket(SECRET, [5, 3], expires_ms=1000)
    ticket = verify(SECRET, credential, 999)
    assert ticket == Ticket(frozenset({3, 5}), 1000)
    assert isinstance(ticket, Ticket)
    assert ticket.allows(3, 999)
    assert not ticket.allows(4, 999)
    assert not ticket.allows(3, 1000)
    with pytest.raises(UnauthorizedError, match="expired"):
        verify(SECRET, credential, 1000)
    with pytest.raises(UnauthorizedError):
        verify(OTHER, credential, 0)


def test_no_bit_of_a_ticket_can_be_changed() -> None:
    credential = make_ticket(SECRET, [1], expires_ms=1000)
    for position in range(len(credential)):
        changed = bytearray(credential)
        changed[position] ^= 1
        with pytest.raises(UnauthorizedError):
            verify(SECRET, bytes(changed), 0)


def test_a_signed_ticket_of_another_shape_is_refused() -> None:
    for body in ({"streams": [1], "read": False, "exp_ms": 9}, {"streams": [1]}, [1, 2], "x"):
        signed = b"ticket:" + msgspec.msgpack.encode(body)
        credential = signed + b"." + hmac.new(SECRET, signed, hashlib.sha256).digest()
        with pytest.raises(UnauthorizedError):
            verify(SECRET, credential, 0)


@given(st.binary(max_size=100), st.sampled_from([b"", b"node:", b"ticket:"]))
def test_garbage_is_refused(garbage: bytes, prefix: bytes) -> None:
    with pytest.raises(UnauthorizedError):
        verify(SECRET, prefix + garbage, 0)
