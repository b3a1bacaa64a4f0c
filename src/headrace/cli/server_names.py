"""Arguments that name what the server has, and what a shell offers for them at the tabulator key.

Nothing here may fail or make a person wait: without a server there are simply no names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from headrace.cli import connection
from headrace.cli.declare import argument

if TYPE_CHECKING:
    import click

    from headrace.client.iggy import IggyClient

SECONDS = 1.5


def streams(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    async def names(client: IggyClient) -> list[str]:
        return [stream.name for stream in await client.get_streams()]

    return _quietly(lambda: _begin(_from_broker(ctx, names), incomplete))


def topics(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """STREAM/TOPIC; the streams alone until one is chosen."""
    stream, slash, _ = incomplete.partition("/")

    async def names(client: IggyClient) -> list[str]:
        if not slash:
            return [f"{one.name}/" for one in await client.get_streams()]
        return [f"{stream}/{one.name}" for one in await client.get_topics(stream)]

    return _quietly(lambda: _begin(_from_broker(ctx, names), incomplete))


def users(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    async def names(client: IggyClient) -> list[str]:
        return [user.username for user in await client.get_users()]

    return _quietly(lambda: _begin(_from_broker(ctx, names), incomplete))


def pipelines(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    def names() -> list[str]:
        from headrace.cli.control_api import control_api

        with _chosen(ctx, connection.CONTROL_OPTIONS):
            found = control_api().pipelines(seconds=SECONDS)
        return _begin([one.name for one in found], incomplete)

    return _quietly(names)


def _from_broker(
    ctx: click.Context, names: Callable[[IggyClient], Awaitable[list[str]]]
) -> list[str]:
    import asyncio

    async def in_time(client: IggyClient) -> list[str]:
        async with asyncio.timeout(SECONDS):
            return await names(client)

    with _chosen(ctx, connection.OPTIONS):
        return connection.with_broker(in_time)


def _chosen(ctx: click.Context, options: Iterable[str]) -> AbstractContextManager[None]:
    """The server that the options before the cursor name."""
    return connection.chosen({name: ctx.params.get(name) for name in options})


def _begin(names: Any, incomplete: str) -> list[str]:
    """Names that a shell can be given: others hold what a terminal takes for orders."""
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())


def _quietly(look: Callable[[], list[str]]) -> list[str]:
    try:
        return look()
    except Exception:  # whatever it is, a half-typed line is no place to tell it
        return []


topic_argument = argument("name", metavar="STREAM/TOPIC", shell_complete=topics)
pipeline_argument = argument("name", metavar="NAME", shell_complete=pipelines)
