"""headrace stream create|list|show|rename|purge|delete"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.cli import server_names
from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import Group, argument, confirm, json_option, yes_option
from headrace.cli.output import print_fields, print_rows, size
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.topics import Stream, StreamDetails

app = Group("stream", help="Streams: folders of topics.")

name_argument = argument("name", metavar="STREAM", shell_complete=server_names.streams)
COLUMNS = ("name", "id", "topics", "messages", "bytes", "created_at_us")


def _row(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "id": stream.id,
        "topics": stream.topics_count,
        "messages": stream.messages_count,
        "bytes": stream.size_bytes,
        "created_at_us": stream.created_at_us,
    }


@app.command("create")
@name_argument
@json_option
@connects
def create(name: str, as_json: bool) -> None:
    """Make a stream."""
    details = with_broker(lambda c: c.create_stream(name))
    print_fields(_row(details.stream), as_json=as_json)


@app.command("list")
@json_option
@connects
def list_streams(as_json: bool) -> None:
    """List the streams."""
    print_rows(map(_row, with_broker(lambda c: c.get_streams())), COLUMNS, as_json=as_json)


@app.command("show")
@name_argument
@json_option
@connects
def show(name: str, as_json: bool) -> None:
    """Show a stream and its topics."""

    details = with_broker(lambda c: details_of(c, name))
    names = [topic.name for topic in details.topics]
    print_fields({**_row(details.stream), "topic_names": names}, as_json=as_json)


async def details_of(client: IggyClient, name: str) -> StreamDetails:
    from headrace.errors import NotFoundError

    details = await client.get_stream(name)
    if details is None:
        raise NotFoundError(f"there is no stream {name!r}")
    return details


def _contents(name: str) -> str:
    """What would be lost, for a question."""
    stream = with_broker(lambda c: details_of(c, name)).stream
    return (
        f"{name}: {stream.topics_count} topics with {stream.messages_count:,} messages, "
        f"{size(stream.size_bytes)}"
    )


@app.command("rename")
@name_argument
@argument("new", metavar="NEW_NAME")
@connects
def rename(name: str, new: str) -> None:
    """Give a stream another name; its topics and their messages stay."""
    with_broker(lambda c: c.update_stream(name, new))
    note(f"renamed {name} to {new}")


@app.command("purge")
@name_argument
@yes_option
@connects
def purge(name: str, yes: bool) -> None:
    """Remove all messages of a stream; its topics stay."""
    confirm(lambda: f"Remove all messages of {_contents(name)}?", yes=yes)
    with_broker(lambda c: c.purge_stream(name))
    note(f"purged {name}")


@app.command("delete")
@name_argument
@yes_option
@connects
def delete(name: str, yes: bool) -> None:
    """Delete a stream with its topics and their messages."""
    confirm(lambda: f"Delete {_contents(name)}?", yes=yes)
    with_broker(lambda c: c.delete_stream(name))
    note(f"deleted {name}")
