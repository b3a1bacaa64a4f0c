"""What a shell offers at the tabulator key: names that the server, or the profiles, have now.

Nothing here may fail or make a person wait: without a server there are simply no names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient

SECONDS = 1.5


def profiles(incomplete: str) -> list[str]:
    from headrace.cli.profiles import load

    return _quietly(lambda: _begin(load()["profiles"], incomplete))


def streams(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(client: IggyClient) -> list[str]:
        return [stream.name for stream in await client.get_streams()]

    return _quietly(lambda: _begin(_from_broker(ctx, names), incomplete))


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """STREAM/TOPIC; the streams alone until one is chosen."""
    stream, slash, _ = incomplete.partition("/")

    async def names(client: IggyClient) -> list[str]:
        if not slash:
            return [f"{one.name}/" for one in await client.get_streams()]
        return [f"{stream}/{one.name}" for one in await client.get_topics(stream)]

    return _quietly(lambda: _begin(_from_broker(ctx, names), incomplete))


def users(ctx: typer.Context, incomplete: str) -> list[str]:
    async def names(client: IggyClient) -> list[str]:
        return [user.username for user in await client.get_users()]

    return _quietly(lambda: _begin(_from_broker(ctx, names), incomplete))


def pipelines(ctx: typer.Context, incomplete: str) -> list[str]:
    def names() -> list[str]:
        from headrace.cli import control_api

        given = {name: ctx.params.get(name) for name in control_api.OPTIONS}
        target, tls = control_api._target(given)
        with _chosen(target=None, tls=tls):
            api = control_api.Api(target.http, target.username, target.password)
            found = api.get("/pipelines", seconds=SECONDS)
        return _begin([one["name"] for one in found], incomplete)

    return _quietly(names)


def _from_broker(
    ctx: typer.Context, names: Callable[[IggyClient], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    from headrace.cli import connection

    target, tls = connection.resolve({name: ctx.params.get(name) for name in connection.OPTIONS})

    async def in_time(client: IggyClient) -> list[str]:
        async with asyncio.timeout(SECONDS):
            return await names(client)

    with _chosen(target=target, tls=tls):
        return connection.with_broker(in_time)


@contextmanager
def _chosen(*, target: Any, tls: Any) -> Iterator[None]:
    """What the options before the cursor say, for as long as names are looked up."""
    from headrace.cli.connection import TARGET
    from headrace.cli.options import TLS

    chosen = TLS.set(tls), TARGET.set(TARGET.get() if target is None else target)
    try:
        yield
    finally:
        TLS.reset(chosen[0])
        TARGET.reset(chosen[1])


def _begin(names: Any, incomplete: str) -> list[str]:
    """Names that a shell can be given: others hold what a terminal takes for orders."""
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def _quietly(look: Callable[[], list[str]]) -> list[str]:
    try:
        return look()
    except Exception:  # whatever it is, a half-typed line is no place to tell it
        return []
