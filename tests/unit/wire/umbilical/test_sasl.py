"""The token login by example; Hadoop's own classes are asked in tests/integration."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import RemoteProtocolError, UnauthenticatedError
from headrace.wire.umbilical import rpc, sasl
from headrace.wire.umbilical._generated import hadoop_rpc_pb2 as pb
from headrace.wire.umbilical.sasl import ClientLogin, Credential, ServerLogin
from headrace.wire.umbilical.tokens import Token

TOKEN = Token(b"identifier of c1", b"the password")
CLIENT_ID = b"0123456789abcdef"
State = pb.RpcSaslProto.SaslState


def look_up(identifier: bytes) -> Credential:
    if identifier != TOKEN.identifier:
        raise UnauthenticatedError("no such token")
    return Credential("c1", TOKEN.password)


def server(**limits: int) -> rpc.ServerConnection:
    return rpc.ServerConnection(login=ServerLogin(look_up, "nonce"), **limits)


def client() -> rpc.ClientConnection:
    return rpc.ClientConnection("a.Protocol", 3, CLIENT_ID)


def converse(
    served: rpc.ServerConnection,
    calling: rpc.ClientConnection,
    login: ClientLogin,
    change: Callable[[bytes], bytes] = lambda data: data,
) -> list[rpc.ServerEvent]:
    """All events at the server until neither side has anything to say."""
    events: list[rpc.ServerEvent] = []
    data = calling.start_login(login)
    while data:
        fresh = served.feed(change(data))
        events += fresh
        replies = [one.reply for one in fresh if isinstance(one, rpc.LoginReply | rpc.Refusal)]
        data = calling.feed_login(login, b"".join(replies)) if replies else b""
    return events


def test_rfc_2831_example() -> None:
    """The IMAP example of the RFC's section 4, number for number."""
    challenge = (
        b'realm="elwood.innosoft.com",nonce="OA6MG9tEQGm2hh",qop="auth",'
        b"algorithm=md5-sess,charset=utf-8"
    )
    answer, expected = sasl.respond(
        challenge,
        sasl.Secret("chris", "secret"),
        digest_uri="imap/elwood.innosoft.com",
        cnonce="OA6MHXh6VqTrRk",
    )
    assert b"response=d388dad90d4bbd760a152321f2143af7" in answer
    assert expected == b"rspauth=ea40f60335c427b5527b84dbabcdfffd"


def test_a_token_logs_in() -> None:
    served, login = server(), ClientLogin(TOKEN, "cnonce")
    events = converse(served, client(), login)
    assert login.done
    assert served.ready
    assert served.user == "c1"
    assert isinstance(events[-1], rpc.Context)
    (request,) = served.feed(client().call(1, "log", b"hello"))
    assert isinstance(request, rpc.Request)


def test_the_challenge_may_come_later() -> None:
    """A server that does not put it into its NEGOTIATE, a client that does not use it there."""
    login, answering = ClientLogin(TOKEN, "cnonce"), ServerLogin(look_up, "nonce")
    offer = pb.RpcSaslProto.FromString(answering.answer(login.start()))
    offer.auths[0].ClearField("challenge")
    initiate = login.answer(offer.SerializeToString())
    assert initiate is not None
    response = login.answer(answering.answer(initiate))
    assert response is not None
    assert login.answer(answering.answer(response)) is None
    assert login.done
    assert answering.user == "c1"


def test_what_goes_over_the_wire() -> None:
    """Hadoop's states in Hadoop's order, nothing of the password in clear."""
    sent: list[bytes] = []

    def record(data: bytes) -> bytes:
        sent.append(data)
        return data

    converse(server(), client(), ClientLogin(TOKEN, "cnonce"), record)
    assert sent[0].startswith(b"hrpc\x09\x00\xdf")
    assert all(TOKEN.password not in data for data in sent)
    assert b"dGhlIHBhc3N3b3Jk" not in b"".join(sent)  # nor in base64


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (Token(TOKEN.identifier, b"wrong"), "secret is wrong"),
        (Token(b"another", TOKEN.password), "no such token"),
        (Token(bytes(4_000), b""), "too long"),
    ],
)
def test_a_wrong_token_is_refused(token: Token, text: str) -> None:
    served, login = server(), ClientLogin(token, "cnonce")
    with pytest.raises(UnauthenticatedError, match=text):
        converse(served, client(), login)
    assert not login.done
    assert not served.ready
    assert served.feed(client().call(1, "log", b"")) == []  # refused for good


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'nonce="nonce"', b'nonce="other"'),
        (b"nc=00000001", b"nc=00000002"),
        (b'"/default"', b'"/another"'),
        (b"qop=auth", b"qop=conf"),
        (b"cnonce=", b"anonce="),
    ],
)
def test_a_changed_answer_is_refused(old: bytes, new: bytes) -> None:
    def change(data: bytes) -> bytes:
        return data.replace(old, new)

    with pytest.raises(UnauthenticatedError):
        converse(server(), client(), ClientLogin(TOKEN, "cnonce"), change)


def test_a_server_that_does_not_know_the_token_is_found_out() -> None:
    login, answering = ClientLogin(TOKEN, "cnonce"), ServerLogin(look_up, "nonce")
    login.answer(answering.answer(login.start()))
    success = pb.RpcSaslProto(state=State.SUCCESS, token=b"rspauth=0").SerializeToString()
    with pytest.raises(UnauthenticatedError, match="does not know"):
        login.answer(success)


def test_a_server_cannot_skip_the_login() -> None:
    login = ClientLogin(TOKEN, "cnonce")
    success = pb.RpcSaslProto(state=State.SUCCESS).SerializeToString()
    with pytest.raises(RemoteProtocolError):
        login.answer(success)


def test_nothing_is_served_before_the_login() -> None:
    served = server()
    for data in (b"hrpc\x09\x00\xdf", client().call(1, "log", b"")):
        events = served.feed(data)
    (refusal,) = events
    assert isinstance(refusal, rpc.Refusal)
    assert not served.ready


def test_a_client_without_a_token_is_told_so() -> None:
    (refusal,) = server().feed(client().greet("ada"))
    assert isinstance(refusal, rpc.Refusal)
    (response,) = client().feed(refusal.reply)
    assert response.error is not None
    assert response.error.fatal
    assert response.error.exception_class == rpc.ACCESS_CONTROL
    assert "token" in response.error.text


def test_frames_are_short_until_somebody_has_logged_in() -> None:
    long = client().call(1, "log", bytes(rpc.LOGIN_FRAME_BYTES_MAX))
    with pytest.raises(RemoteProtocolError, match="frame length"):
        server().feed(b"hrpc\x09\x00\xdf" + long)
    served = server()
    converse(served, client(), ClientLogin(TOKEN, "cnonce"))
    (request,) = served.feed(long)
    assert isinstance(request, rpc.Request)


@pytest.mark.parametrize(
    "states",
    [
        [State.INITIATE],
        [State.RESPONSE],
        [State.NEGOTIATE, State.NEGOTIATE],
        [State.NEGOTIATE, State.RESPONSE],
        [State.NEGOTIATE, State.WRAP],
    ],
)
def test_states_out_of_turn(states: list[pb.RpcSaslProto.SaslState]) -> None:
    login = ServerLogin(look_up, "nonce")
    *before, last = (pb.RpcSaslProto(state=one).SerializeToString() for one in states)
    for message in before:
        login.answer(message)
    with pytest.raises(RemoteProtocolError):
        login.answer(last)


def test_another_mechanism_is_refused() -> None:
    login = ServerLogin(look_up, "nonce")
    login.answer(pb.RpcSaslProto(state=State.NEGOTIATE).SerializeToString())
    kerberos = pb.RpcSaslProto.SaslAuth(method="KERBEROS", mechanism="GSSAPI")
    chosen = pb.RpcSaslProto(state=State.INITIATE, auths=[kerberos])
    with pytest.raises(UnauthenticatedError, match="TOKEN by DIGEST-MD5"):
        login.answer(chosen.SerializeToString())


@given(st.binary(max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    login = ServerLogin(look_up, "nonce")
    login.answer(pb.RpcSaslProto(state=State.NEGOTIATE).SerializeToString())
    auth = pb.RpcSaslProto.SaslAuth(method="TOKEN", mechanism="DIGEST-MD5")
    message = pb.RpcSaslProto(state=State.INITIATE, token=data or b"x", auths=[auth])
    with pytest.raises((RemoteProtocolError, UnauthenticatedError)):
        login.answer(message.SerializeToString())
    with pytest.raises(RemoteProtocolError):
        ClientLogin(TOKEN, "c").answer(data)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z-]{0,10}", fullmatch=True),
        st.text(st.characters(min_codepoint=32, max_codepoint=126)),
        max_size=8,
    )
)
def test_directives_round_trip(values: dict[str, str]) -> None:
    text = ",".join(f'{name}="{sasl._escape(value)}"' for name, value in values.items())
    assert sasl.parse_directives(text.encode()) == values


@pytest.mark.parametrize(
    "data", [b"a", b'a="', b'a="b', b"=b", b"a=1,a=2", b'a="\xff"', b"a=b c", b"x" * 10_000]
)
def test_not_directives(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        sasl.parse_directives(data)
