"""The pages' connections to a real broker: kept, shared, bounded, and each its user's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.testing.broker import LocalBroker
from headrace.web import broker_links
from headrace.web.broker_links import BrokerLinks
from headrace.web.sessions import Credentials

ROOT, GUEST = Credentials("iggy", "iggy"), Credentials("guest", "guest")


@pytest.fixture
async def links() -> AsyncIterator[BrokerLinks]:
    with LocalBroker() as broker:
        made = BrokerLinks(system_runtime(), parse_address(broker.address), "no token")
        async with made.as_user(ROOT) as client:
            await client.create_user("guest", "guest")
        yield made
        await made.close()


async def test_calls_are_the_users_own(links: BrokerLinks) -> None:
    assert (await links.login("iggy", "iggy")).may_manage
    guest = await links.login("guest", "guest")
    assert (guest.may_manage, guest.permissions) == (False, None)
    with pytest.raises(UnauthenticatedError):
        await links.login("iggy", "wrong")
    async with links.as_user(ROOT) as client:
        await client.create_stream("s")
    with pytest.raises(UnauthorizedError):
        async with links.as_user(GUEST) as client:
            await client.create_stream("t")
    with pytest.raises(UnauthenticatedError):
        async with links.as_service():
            pass


async def test_an_old_password_is_noticed(links: BrokerLinks) -> None:
    await links.login("guest", "guest")
    async with links.as_user(GUEST) as kept:
        await kept.change_password("guest", current="guest", new="another")
    with pytest.raises(UnauthenticatedError):
        await links.login("guest", "guest")
    assert not kept.usable


async def test_a_connection_is_kept_and_replaced_when_it_broke(links: BrokerLinks) -> None:
    async with links.as_user(ROOT) as first:
        pass
    async with links.as_user(ROOT) as second:
        assert second is first
        await second.close()
    async with links.as_user(ROOT) as third:
        assert third is not first
        await third.ping()


async def test_there_are_so_many_and_those_in_use_stay(
    links: BrokerLinks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_links, "LINKS_MAX", 1)
    async with links.as_user(ROOT) as kept:
        async with links.as_user(GUEST) as other:
            pass
        assert not other.usable, "it made room"
        await kept.ping()
    monkeypatch.setattr(broker_links, "IDLE_SECONDS", -1.0)
    async with links.as_user(ROOT) as kept:
        pass
    assert not kept.usable, "nobody used it for long enough"
