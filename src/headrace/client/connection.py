"""Connections to a broker that are made again when they break.

`Link` is for questions and for changes that may be made twice. `Sender` is for messages: it numbers
its requests (dialect C), so that one whose answer was lost is sent again and stored once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.client.iggy import IggyClient
from headrace.client.url import ServerUrl
from headrace.concurrency.retry import OUTSIDE, TRANSIENT, retry
from headrace.errors import HeadraceError, UnauthenticatedError, UnauthorizedError
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.extensions import ServerHello
from headrace.wire.iggy.messages.messages import SendMessages, SentMessages
from headrace.wire.iggy.vsr.client import Conversation

T = TypeVar("T")

SEND_SECONDS = 30.0  # for one request; a large batch on a slow disk takes its time


class Link:
    """One connection under one identity. Nothing is opened before the first call."""

    def __init__(
        self,
        runtime: Runtime,
        server: ServerUrl,
        *,
        retry_seconds: float,
        conversation: Conversation | None = None,
        on_failure: Callable[[HeadraceError], None] | None = None,
        on_connected: Callable[[], None] | None = None,
    ) -> None:
        """`on_failure` hears of failures that are tried again, `on_connected` of connections."""
        self.runtime = runtime
        self.on_failure = on_failure
        self.on_connected = on_connected
        self.server = server
        self.retry_seconds = retry_seconds
        self.tls: ClientTls | None = server.tls.client()
        self._conversation = conversation
        self._client: IggyClient | None = None
        self._connecting = asyncio.Lock()
        self._token = ""  # that we logged in with
        self._hello: list[ServerHello | None] = []
        self.connections = 0
        """How many were made: another number means that a group must be joined again."""

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
                if not await self._is_renewed():
                    raise
                await self.disconnect(client)  # what we logged in with ended: there is another
                return await call(await self.connected())

        return await self.again(attempt)

    async def again(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Do it, again after failures that pass, for as long as this link tries."""
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
        server = self.server
        client = await IggyClient.connect(
            self.runtime, server.host, server.port, tls=self.tls, conversation=self._conversation
        )
        try:
            token = self._token = await self._read_token()
            if token:
                await client.login_with_token(token)
            else:
                await client.login(server.username, server.password)
        except BaseException:
            await client.close()
            raise
        return client

    async def _read_token(self) -> str:
        server = self.server
        if server.token or not server.token_file:
            return server.token
        executor = self.runtime.executor("token", 1)
        try:
            data = await executor.run(self.runtime.disk.read, server.token_file)
        finally:
            executor.close()
        return data.decode("ascii", "replace").strip()

    async def _is_renewed(self) -> bool:
        return bool(self.server.token_file) and await self._read_token() != self._token

    async def disconnect(self, client: IggyClient) -> None:
        if self._client is client:
            self._client = None
            await client.close()

    async def close(self) -> None:
        if self._client is not None:
            await self.disconnect(self._client)


class Sender:
    """Sends one request at a time, in order. To a plain Iggy server a request goes once: one whose
    answer was lost fails with UnavailableError, and whether it was stored is unknown."""

    def __init__(self, questions: Link) -> None:
        self._questions = questions
        self._turn = asyncio.Lock()
        self._link: Link | None = None
        self._numbered = False

    async def send(self, request: SendMessages) -> SentMessages:
        """Where the messages were put; empty where the server does not say."""
        async with self._turn:
            link = self._link or await self._open()
            if not self._numbered:
                await link.once(lambda client: client.send_batch(request, timeout=SEND_SECONDS))
                return SentMessages(())
            sent = False

            async def attempt() -> SentMessages:
                nonlocal sent
                client = await link.connected()
                try:
                    if sent:
                        return await client.again(
                            c.SEND_MESSAGES, timeout=SEND_SECONDS, request=request
                        )
                    sent = True
                    return await client.call(c.SEND_MESSAGES, request, timeout=SEND_SECONDS)
                except TRANSIENT:
                    await link.disconnect(client)
                    raise

            return await link.again(attempt)

    async def _open(self) -> Link:
        questions = self._questions
        self._numbered = await questions.hello() is not None
        self._link = Link(
            questions.runtime,
            questions.server,
            retry_seconds=questions.retry_seconds,
            conversation=(
                Conversation(questions.runtime.random.bytes(16)) if self._numbered else None
            ),
            on_failure=questions.on_failure,
            on_connected=questions.on_connected,
        )
        return self._link

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()
