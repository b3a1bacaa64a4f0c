"""headrace topic create|list|show|delete"""

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
    TopicName,
    Username,
    split_topic,
    takes_tls,
)
from headrace.cli.output import note, print_fields, print_json, print_rows

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.topics import Topic

app = typer.Typer(help="Topics: what messages are sent to.", no_args_is_help=True)

COLUMNS = ("name", "id", "partitions", "messages", "bytes", "expiry", "max_bytes")
PARTITION_COLUMNS = ("partition", "messages", "next_offset", "bytes", "segments")
_NEVER = 0xFFFF_FFFF_FFFF_FFFF


def _row(topic: Topic) -> dict[str, Any]:
    never = topic.message_expiry_us == _NEVER
    unlimited = topic.max_size_bytes == _NEVER
    return {
        "name": topic.name,
        "id": topic.id,
        "partitions": topic.partitions_count,
        "messages": topic.messages_count,
        "bytes": topic.size_bytes,
        "expiry": "never" if never else f"{topic.message_expiry_us / 1e6:g} s",
        "max_bytes": "unlimited" if unlimited else topic.max_size_bytes,
    }


@app.command("create")
@takes_tls
def create(
    name: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", min=0, max=1000)] = 1,
    expiry_seconds: Annotated[
        float, typer.Option("--expiry", help="Seconds a message is kept; 0 = the server's default.")
    ] = 0,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", help="Size cap; 0 = the server's default.")
    ] = 0,
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Make a topic in an existing stream."""
    stream, topic = split_topic(name)
    details = with_broker(
        address,
        username,
        password,
        lambda c: c.create_topic(
            stream,
            topic,
            partitions_count=partitions,
            message_expiry_us=int(expiry_seconds * 1_000_000),
            max_size_bytes=max_bytes,
        ),
    )
    print_fields(_row(details.topic), as_json=as_json)


@app.command("list")
@takes_tls
def list_topics(
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """List the topics of a stream."""
    found = with_broker(address, username, password, lambda c: c.get_topics(stream))
    print_rows(map(_row, found), COLUMNS, as_json=as_json)


@app.command("show")
@takes_tls
def show(
    name: TopicName,
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Show a topic and its partitions."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        from headrace.errors import NotFoundError

        details = await client.get_topic(stream, topic)
        if details is None:
            raise NotFoundError(f"there is no topic {name!r}")
        rows = [
            {
                "partition": p.id,
                "messages": p.messages_count,
                "next_offset": p.current_offset + 1 if p.messages_count else p.current_offset,
                "bytes": p.size_bytes,
                "segments": p.segments_count,
            }
            for p in details.partitions
        ]
        return _row(details.topic), rows

    fields, rows = with_broker(address, username, password, work)
    if as_json:
        print_json({**fields, "partitions": rows})
        return
    print_fields(fields, as_json=False)
    print_rows(rows, PARTITION_COLUMNS, as_json=False)


@app.command("delete")
@takes_tls
def delete(
    name: TopicName,
    address: Address = ADDRESS,
    username: Username = USERNAME,
    password: Password = PASSWORD,
) -> None:
    """Delete a topic and its messages."""
    stream, topic = split_topic(name)
    with_broker(address, username, password, lambda c: c.delete_topic(stream, topic))
    note(f"deleted {name}")
