"""Client ids of sessions that are with another worker, and what is known of their dialect."""

from __future__ import annotations

import msgspec
import pytest

from headrace.broker.sessions.sessions import Session, Sessions
from headrace.wire.iggy.detection import SpokenDialect, SpokenState
from headrace.wire.iggy.dialects import Dialect, of_version


def opened(sessions: Sessions, address: str = "h:1") -> Session:
    return sessions.open(address, Dialect.B2, 0.0)


def test_an_id_stays_taken_while_its_client_is_elsewhere() -> None:
    here, there = Sessions(), Sessions()
    here.worker, there.worker = 0, 1
    session = opened(here)
    here.give_away(session)
    assert here.get(session.client_id) is None
    session.home = "here"
    there.take(session)
    assert there.get(session.client_id) is session
    other = opened(here)
    assert other.client_id != session.client_id
    # Two moves on, and at its end: another worker's id is nothing to keep.
    there.give_away(session)
    assert not there._away
    here.on_ended(session.client_id)
    here.close(other)
    assert opened(here).client_id == session.client_id


def test_it_comes_home() -> None:
    here = Sessions()
    here.worker = 0
    session = opened(here)
    here.give_away(session)
    here.take(session)
    assert here.get(session.client_id) is session
    here.close(session)
    assert opened(here).client_id == session.client_id


def test_an_id_of_a_member_is_nobody_elses() -> None:
    here = Sessions()
    here.worker = 0
    session = opened(here)
    here.close(session)
    here.is_member = lambda client_id: client_id == session.client_id
    assert opened(here).client_id != session.client_id


@pytest.mark.parametrize("version", ["0.7.0", "0.8.0", "0.10.0", "nothing"])
@pytest.mark.parametrize("pings", [False, True])
@pytest.mark.parametrize("polls", [0, 1])
def test_a_dialect_goes_on_as_it_was(version: str, pings: bool, polls: int) -> None:
    spoken = SpokenDialect(Dialect.B2)
    if pings:
        spoken.on_ping(early=True)
    stated = of_version(version)
    if stated is None:
        spoken.on_silent_login(Dialect.A)
    else:
        spoken.on_version(stated)
    for _ in range(polls):
        spoken.on_poll(nobody=True)
    data = msgspec.msgpack.encode(spoken.state())
    again = SpokenDialect.of(msgspec.msgpack.decode(data, type=SpokenState))
    assert again == spoken
    for each in (spoken, again):
        each.on_poll(nobody=True)
        each.on_ping(early=False)
    assert again == spoken
