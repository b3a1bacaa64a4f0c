"""headrace stream create|list|show|delete"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.broker import with_broker
from headrace.cli.options import (
    ADDRESS,
    PASSWORD,
    USERNAME,
    Address,
    AsJson,
    Password,
    Username,
    takes_tls,
)
from headrace.cli.output import note, print_fields, print_rows

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.streams import Stream

app = typer.Typer(help="Streams: folders of topics.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="STREAM")]
COLUMNS = ("name", "id", "topics", "messages", "bytes")


def _row(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "id": stream.id,
        "topics": stream.topics_count,
        "messages": stream.messages_count,
        "bytes": stream.size_bytes,
    }


@app.command("create")
@takes_tls
def create(
    name: Name,
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Make a stream."""
    details = with_broker(address, username, password, lambda c: c.create_stream(name))
    print_fields(_row(details.stream), as_json=as_json)


@app.command("list")
@takes_tls
def list_streams(
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """List the streams."""
    found = with_broker(address, username, password, lambda c: c.get_streams())
    print_rows(map(_row, found), COLUMNS, as_json=as_json)


@app.command("show")
@takes_tls
def show(
    name: Name,
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Show a stream and its topics."""

    async def work(client: IggyClient) -> dict[str, Any]:
        from headrace.errors import NotFoundError

        details = await client.get_stream(name)
        if details is None:
            raise NotFoundError(f"there is no stream {name!r}")
        return {**_row(details.stream), "topic_names": [t.name for t in details.topics]}

    print_fields(with_broker(address, username, password, work), as_json=as_json)


@app.command("delete")
@takes_tls
def delete(
    name: Name,
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
) -> None:
    """Delete a stream with its topics and their messages."""
    with_broker(address, username, password, lambda c: c.delete_stream(name))
    note(f"deleted {name}")
