"""`connect` and `connect_sync`: where clients begin."""

from __future__ import annotations

import os

from headrace.client.blocking import SyncClient
from headrace.client.session import RETRY_SECONDS, Client
from headrace.client.url import parse_url
from headrace.runtime.system import system_runtime


def connect(url: str = "", *, retry_seconds: float = RETRY_SECONDS) -> Client:
    """A client for programs with asyncio; it connects when it is entered, or at its first call.

    `url` is `headrace://user:password@host:8090`, with `headrace+tls://` over TLS. What it leaves
    out comes from HEADRACE_ADDRESS, HEADRACE_USERNAME, HEADRACE_PASSWORD or HEADRACE_TOKEN, and
    HEADRACE_TLS_CA; after that it is what `headrace up --dev` serves.

    `retry_seconds` is how long a server that is out of reach is waited for.

    >>> async with headrace.client.connect("headrace://etl:secret@broker:8090") as client:
    ...     print(await client.streams())
    """
    return Client(system_runtime(), parse_url(url, os.environ), retry_seconds=retry_seconds)


def connect_sync(url: str = "", *, retry_seconds: float = RETRY_SECONDS) -> SyncClient:
    """The same for programs that block.

    >>> with headrace.client.connect_sync() as client:
    ...     client.send("shop/orders", b"{}")
    """
    return SyncClient(parse_url(url, os.environ), retry_seconds=retry_seconds)
