"""Connections to the broker: one as the service, and one for each user who asks something.

A user's connection is kept for a while, because a login costs the broker an Argon2; there are at
most CONNECTIONS_MAX of them. Each does one request at a time. `ReachedBroker` tells `/ready`
whether the broker answers: a page without it shows nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.client.iggy import IggyClient
from headrace.client.url import Identity
from headrace.errors import HeadraceError, ThrottledError, UnauthenticatedError, UnavailableError
from headrace.net.tls import ClientTls
from headrace.observability.exposition import Family
from headrace.runtime import Runtime
from headrace.web.broker_api.catalogue import may
from headrace.web.metrics.process import Check
from headrace.web.server.logins import Broker, Credentials, Login
from headrace.wire.iggy.commands import Permission
from headrace.wire.iggy.errors import IggyError

CONNECTIONS_MAX = (
    128  # two of a user: what takes long must not keep the next request from its login
)
_ASKING = "who"
IDLE_SECONDS = 60.0
PING_SECONDS = 2.0


@dataclass(slots=True)
class _UserConnection:
    client: IggyClient | None = None
    user_id: int = 0
    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    used: float = 0.0


class BrokerConnections:
    """What the JSON API asks of the broker (`logins.Broker`)."""

    def __init__(
        self,
        runtime: Runtime,
        address: tuple[str, int],
        token: str,
        *,
        tls: ClientTls | None = None,
    ) -> None:
        self._runtime = runtime
        self._address = address
        self._tls = tls
        self._token = token
        self._service = _UserConnection()
        self._connections: OrderedDict[bytes, _UserConnection] = OrderedDict()

    async def login(self, credentials: Credentials) -> Login:
        """Whether the broker knows this user, and what they may do, now.

        Asked on a connection that is kept for it: the broker logs it out when the user is deleted,
        made inactive or gets another password, and the login that then follows says the rest.
        """
        key = _key(credentials, _ASKING)
        connection = self._connections.get(key)
        kept = connection is not None and connection.client is not None and connection.client.usable
        try:
            return await self._ask(credentials, key)
        except UnauthenticatedError:
            if not kept:
                raise
        except UnavailableError:
            pass  # another who asked on it went away in the middle, and the connection with them
        return await self._ask(credentials, key)

    async def _ask(self, credentials: Credentials, key: bytes) -> Login:
        name = credentials.username
        async with self._as_user(credentials, key) as connection:
            assert connection.client is not None, "it is connected"
            details = await connection.client.get_user(
                connection.user_id
            )  # oneself, whatever one may do
            if details is None or details.user.username != name:
                raise UnauthenticatedError("the user has another name by now")
        permissions = details.permissions
        may_manage = permissions is not None and permissions.everywhere.manage_servers
        return Login(name, may_manage=may_manage, permissions=permissions)

    @asynccontextmanager
    async def as_user(self, credentials: Credentials) -> AsyncIterator[IggyClient]:
        async with self._as_user(credentials, _key(credentials)) as connection:
            assert connection.client is not None, "it is connected"
            yield connection.client

    @asynccontextmanager
    async def _as_user(
        self, credentials: Credentials, key: bytes
    ) -> AsyncIterator[_UserConnection]:
        connection = self._connections.setdefault(key, _UserConnection())
        self._connections.move_to_end(key)
        connection.users += 1
        try:
            await self._connected(connection, credentials)
            yield connection
        except UnauthenticatedError:
            await self._drop(key)  # nobody is logged in on it
            raise
        finally:
            connection.users -= 1
            connection.used = self._runtime.clock.monotonic()
            await self._tidy()

    @asynccontextmanager
    async def as_service(self) -> AsyncIterator[IggyClient]:
        yield await self._connected(self._service, None)

    async def _connected(
        self, connection: _UserConnection, credentials: Credentials | None
    ) -> IggyClient:
        async with connection.connecting:
            if connection.client is None or not connection.client.usable:
                connection.client, connection.user_id = await self._connect(credentials)
            return connection.client

    async def _connect(self, credentials: Credentials | None) -> tuple[IggyClient, int]:
        client = await IggyClient.connect(self._runtime, *self._address, tls=self._tls)
        try:
            if credentials is None:
                return client, await client.log_in(Identity(token=self._token))
            if credentials.host:
                with suppress(IggyError):  # a broker of before: the login counts as our own
                    await client.speak_for(credentials.host, self._token)
            identity = Identity(credentials.username, credentials.password)
            return client, await client.log_in(identity)
        except IggyError as error:
            await client.close()
            if isinstance(error, UnavailableError):
                raise ThrottledError("too many logins wait; try again in a moment") from error
            raise UnauthenticatedError("unknown user or wrong password") from error
        except BaseException:
            await client.close()
            raise

    async def _tidy(self) -> None:
        """Close what nobody used for a while, and the oldest when there are too many."""
        old = self._runtime.clock.monotonic() - IDLE_SECONDS
        free = [key for key, connection in self._connections.items() if not connection.users]
        surplus = len(self._connections) - CONNECTIONS_MAX
        for position, key in enumerate(free):
            if position < surplus or self._connections[key].used < old:
                await self._drop(key)

    async def _drop(self, key: bytes) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None and connection.client is not None:
            await connection.client.close()

    async def overview(self, login: Login) -> dict[str, Any]:
        async with self.as_service() as client:
            stats = await client.get_stats()
            topics = [
                {
                    "stream": stream.name,
                    "topic": topic.name,
                    "partitions": topic.partitions_count,
                    "messages": topic.messages_count,
                    "bytes": topic.size_bytes,
                }
                for stream in await client.get_streams()
                for topic in await client.get_topics(stream.id)
                if may(login.permissions, Permission.READ_TOPIC, stream.id, topic.id)
            ]
        return {"server": f"version {stats.server_version}", "topics": topics}

    async def close(self) -> None:
        for key in list(self._connections):
            await self._drop(key)
        if self._service.client is not None:
            await self._service.client.close()


def _key(credentials: Credentials, purpose: str = "") -> bytes:
    said = f"{purpose}\0{credentials.username}\0{credentials.password}"
    return hashlib.sha256(said.encode()).digest()


class ReachedBroker:
    role = "broker"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def families(self) -> list[Family]:
        return []

    async def checks(self) -> list[Check]:
        try:
            async with asyncio.timeout(PING_SECONDS), self._broker.as_service() as client:
                await client.ping()
        except TimeoutError:
            return [Check("answers", False, f"no answer within {PING_SECONDS:.0f} s")]
        except HeadraceError as error:
            return [Check("answers", False, str(error))]
        return [Check("answers", True)]
