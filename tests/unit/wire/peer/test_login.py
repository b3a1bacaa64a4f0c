"""Both sides of a link prove that they hold the secret."""

import pytest

from headrace.errors import RemoteProtocolError, UnauthenticatedError
from headrace.wire.peer.login import Login, decode_hello, encode_hello

SECRET = b"s" * 32


def sides(theirs: bytes = SECRET) -> tuple[Login, Login]:
    opener = Login(SECRET, encode_hello("w1", b"1" * 32), is_opener=True)
    listener = Login(theirs, encode_hello("w2", b"2" * 32), is_opener=False)
    opener.on_hello(listener.hello)
    listener.on_hello(opener.hello)
    return opener, listener


def test_both_hold_the_secret() -> None:
    opener, listener = sides()
    listener.check(opener.proof)
    opener.check(listener.proof)
    assert (opener.peer_name, listener.peer_name) == ("w2", "w1")


def test_another_secret_proves_nothing_either_way() -> None:
    opener, listener = sides(b"t" * 32)
    with pytest.raises(UnauthenticatedError):
        listener.check(opener.proof)
    with pytest.raises(UnauthenticatedError):
        opener.check(listener.proof)


def test_a_proof_is_worth_nothing_sent_back_or_a_second_time() -> None:
    opener, _ = sides()
    with pytest.raises(UnauthenticatedError):
        opener.check(opener.proof)
    later = Login(SECRET, encode_hello("w2", b"3" * 32), is_opener=False)
    later.on_hello(opener.hello)
    with pytest.raises(UnauthenticatedError):
        later.check(opener.proof)


def test_a_name_belongs_to_the_proof() -> None:
    opener, _ = sides()
    listener = Login(SECRET, encode_hello("w2", b"2" * 32), is_opener=False)
    listener.on_hello(encode_hello("w9", b"1" * 32))
    with pytest.raises(UnauthenticatedError):
        listener.check(opener.proof)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x01",
        b"\x02\0" + bytes(32) + b"name",
        b"\x01\0" + bytes(32),
        b"\x01\0" + bytes(32) + b"x" * 256,
        b"\x01\0" + bytes(32) + b"\xff",
    ],
)
def test_what_is_no_greeting_is_refused(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_hello(head)
