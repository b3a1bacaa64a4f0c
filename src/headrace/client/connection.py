"""A connection to a broker that is made again when it breaks, under one identity.

It is for questions and for changes that may be made twice; messages go through a `Sender`
(`sending.py`), which numbers its requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from headrace.client.url import Identity, ServerUrl
from headrace.concurrency.retry import OUTSIDE, TRANSIENT, retry
from headrace.errors import HeadraceError, UnauthenticatedError, UnauthorizedError
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.extensions import ServerHello
    from headrace.wire.iggy.vsr.client import Conversation

T = TypeVar("T")


class BrokerConnection:
    """A connection under one identity. Nothing is opened before the first call."""

    def __init__(
        self,
        runtime: Runtime,
        server: ServerUrl,
        *,
        retry_seconds: float,
        identity: Callable[[], Awaitable[Identity]] | None = None,
        conversation: Conversation | None = None,
        on_failure: Callable[[HeadraceError], None] | None = None,
        on_connected: Callable[[], None] | None = None,
    ) -> None:
        """`identity` is asked for every login, and replaces what `server` says of it.

        `on_failure` hears of failures that are tried again, `on_connected` of connections.
        """
        self.runtime = runtime
        self.on_failure = on_failure
        self.on_connected = on_connected
        self.server = server
        self.retry_seconds = retry_seconds
        self.tls: ClientTls | None = server.tls.client()
        self._given_identity = identity
        self._identity = identity or self._identity_of_server
        self._logged_in_as = Identity()
        self._conversation = conversation
        self._client: IggyClient | None = None
        self._connecting = asyncio.Lock()
        self._hello: list[ServerHello | None] = []
        self.connections = 0
        """How many were made: another number means that a group must be joined again."""

    def numbered(self) -> BrokerConnection:
        """Another connection to the same server, whose requests are numbered (dialect C)."""
        from headrace.wire.iggy.vsr.client import Conversation

        return self._another(Conversation(self.runtime.random.bytes(16)))

    def plain(self) -> BrokerConnection:
        """Another connection to the same server, in the same way."""
        return self._another(None)

    def _another(self, conversation: Conversation | None) -> BrokerConnection:
        return BrokerConnection(
            self.runtime,
            self.server,
            retry_seconds=self.retry_seconds,
            identity=self._given_identity,
            conversation=conversation,
            on_failure=self.on_failure,
            on_connected=self.on_connected,
        )

    async def call(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Make the call on a connection that works, again after failures that pass."""

        async def attempt() -> T:
            client = await self.connected()
            try:
                return await call(client)
            except TRANSIENT:
                await self.disconnect(client)
                raise
            except (UnauthenticatedError, UnauthorizedError):
                if await self._identity() == self._logged_in_as:
                    raise
                await self.disconnect(client)  # what we logged in with ended: there is another
                return await call(await self.connected())

        return await self.again(attempt)

    async def again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Do it, again after failures that pass, for as long as this connection tries."""
        return await retry(
            self.runtime,
            lambda _: attempt(),
            self.retry_seconds,
            OUTSIDE,
            on_failure=self.on_failure,
        )

    async def once(self, call: Callable[[IggyClient], Awaitable[T]]) -> T:
        """Make a call that must not be made twice; whether a broken one was made is unknown."""
        client = await self.again(self.connected)
        try:
            return await call(client)
        except TRANSIENT:
            await self.disconnect(client)
            raise

    async def hello(self) -> ServerHello | None:
        """What the server offers; None for a plain Iggy server. Asked once."""
        if not self._hello:
            self._hello.append(await self.call(lambda client: client.hello()))
        return self._hello[0]

    async def connected(self) -> IggyClient:
        async with self._connecting:
            if self._client is None or not self._client.usable:
                self._client = await self._connect()
                self.connections += 1
                if self.on_connected is not None:
                    self.on_connected()
            return self._client

    async def _connect(self) -> IggyClient:
        from headrace.client.iggy import IggyClient  # a Spark task that reads may never need it

        identity = await self._identity()
        client = await IggyClient.connect(
            self.runtime,
            self.server.host,
            self.server.port,
            tls=self.tls,
            conversation=self._conversation,
            identity=identity,
        )
        self._logged_in_as = identity
        return client

    async def _identity_of_server(self) -> Identity:
        server = self.server
        token = server.token
        if not token and server.token_file:
            executor = self.runtime.executor("token", 1)
            try:
                data = await executor.run(self.runtime.disk.read, server.token_file)
            finally:
                executor.close()
            token = data.decode("ascii", "replace").strip()
        return Identity(server.username, server.password, token)

    async def disconnect(self, client: IggyClient) -> None:
        if self._client is client:
            self._client = None
            await client.close()

    async def close(self) -> None:
        if self._client is not None:
            await self.disconnect(self._client)
