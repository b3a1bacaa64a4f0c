"""The pages' connections to a real broker: kept, shared, bounded, and each its user's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from headrace.client.iggy import IggyClient
from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.net.addresses import parse_address
from headrace.runtime.system import system_runtime
from headrace.testing.broker import LocalBroker
from headrace.web.broker_api import broker_connections
from headrace.web.broker_api.broker_connections import BrokerConnections
from headrace.web.server.logins import Credentials
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions, UserStatus

ROOT, GUEST = Credentials("iggy", "iggy"), Credentials("guest", "guest")


@pytest.fixture
async def connections() -> AsyncIterator[BrokerConnections]:
    with LocalBroker() as broker:
        made = BrokerConnections(system_runtime(), parse_address(broker.address), "no token")
        async with made.as_user(ROOT) as client:
            await client.create_user("guest", "guest")
        yield made
        await made.close()


async def test_calls_are_the_users_own(connections: BrokerConnections) -> None:
    assert (await connections.login(ROOT)).may_manage
    guest = await connections.login(GUEST)
    assert (guest.may_manage, guest.permissions) == (False, None)
    with pytest.raises(UnauthenticatedError):
        await connections.login(Credentials("iggy", "wrong"))
    async with connections.as_user(ROOT) as client:
        await client.create_stream("s")
    with pytest.raises(UnauthorizedError):
        async with connections.as_user(GUEST) as client:
            await client.create_stream("t")
    with pytest.raises(UnauthenticatedError):
        async with connections.as_service():
            pass


async def test_who_goes_away_while_asking_takes_nobody_with_them(
    connections: BrokerConnections,
) -> None:
    """As a page that is left while its events are looked at: the connection ends with its call."""
    await connections.login(ROOT)
    for turns in range(1, 6):
        first, *others = (asyncio.create_task(connections.login(ROOT)) for _ in range(4))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        assert [one.username for one in await asyncio.gather(*others)] == ["iggy"] * 3
        await asyncio.gather(first, return_exceptions=True)


async def test_an_old_password_is_noticed(connections: BrokerConnections) -> None:
    await connections.login(GUEST)
    async with connections.as_user(GUEST) as kept:
        await kept.change_password("guest", current="guest", new="another")
    with pytest.raises(UnauthenticatedError):
        await connections.login(GUEST)
    await connections.login(Credentials("guest", "another"))


async def _delete(root: IggyClient) -> None:
    await root.delete_user("guest")


async def _deactivate(root: IggyClient) -> None:
    await root.update_user("guest", status=UserStatus.INACTIVE)


async def _change_password(root: IggyClient) -> None:
    await root.change_password("guest", current="guest", new="another")


async def _rename(root: IggyClient) -> None:
    await root.update_user("guest", username="other")
    await root.create_user("guest", "mine", permissions=Permissions(GlobalPermissions.all()))


@pytest.mark.parametrize("change", [_delete, _deactivate, _change_password, _rename])
async def test_who_is_not_that_user_any_more_is_refused_at_once(
    connections: BrokerConnections, change: Callable[[IggyClient], Awaitable[None]]
) -> None:
    await connections.login(GUEST)
    async with connections.as_user(ROOT) as root:
        await change(root)
    with pytest.raises(UnauthenticatedError):
        await connections.login(GUEST)


async def test_rights_are_those_of_now(connections: BrokerConnections) -> None:
    everything = Permissions(GlobalPermissions.all())
    for permissions in (everything, None, everything):
        async with connections.as_user(ROOT) as root:
            await root.update_permissions("guest", permissions)
        login = await connections.login(GUEST)
        assert login.permissions == permissions
        assert login.may_manage is (permissions is not None)


async def test_asking_costs_no_login(connections: BrokerConnections) -> None:
    await connections.login(GUEST)
    asking = [connection.client for connection in connections._connections.values()]
    for _ in range(20):
        await connections.login(GUEST)
    assert [connection.client for connection in connections._connections.values()] == asking


async def test_a_connection_is_kept_and_replaced_when_it_broke(
    connections: BrokerConnections,
) -> None:
    async with connections.as_user(ROOT) as first:
        pass
    async with connections.as_user(ROOT) as second:
        assert second is first
        await second.close()
    async with connections.as_user(ROOT) as third:
        assert third is not first
        await third.ping()


async def test_there_are_so_many_and_those_in_use_stay(
    connections: BrokerConnections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_connections, "CONNECTIONS_MAX", 1)
    async with connections.as_user(ROOT) as kept:
        async with connections.as_user(GUEST) as other:
            pass
        assert not other.usable, "it made room"
        await kept.ping()
    monkeypatch.setattr(broker_connections, "IDLE_SECONDS", -1.0)
    async with connections.as_user(ROOT) as kept:
        pass
    assert not kept.usable, "nobody used it for long enough"
