"""headrace stream and headrace topic: messages are sent to topics, and streams hold topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli import server_names
from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import (
    Group,
    argument,
    confirm,
    json_option,
    option,
    split_topic,
    yes_option,
)
from headrace.cli.output import NEVER, print_fields, print_json, print_rows, size
from headrace.cli.server_names import topic_argument
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.topics import Stream, StreamDetails, Topic, TopicDetails

streams = Group("stream", help="Streams: folders of topics.")

stream_argument = argument("name", metavar="STREAM", shell_complete=server_names.streams)
STREAM_COLUMNS = ("name", "id", "topics", "messages", "bytes", "created_at_us")


def _stream_row(stream: Stream) -> dict[str, Any]:
    return {
        "name": stream.name,
        "id": stream.id,
        "topics": stream.topics_count,
        "messages": stream.messages_count,
        "bytes": stream.size_bytes,
        "created_at_us": stream.created_at_us,
    }


@streams.command("create")
@stream_argument
@json_option
@connects
def create_stream(name: str, as_json: bool) -> None:
    """Make a stream."""
    details = with_broker(lambda c: c.create_stream(name))
    print_fields(_stream_row(details.stream), as_json=as_json)


@streams.command("list")
@json_option
@connects
def list_streams(as_json: bool) -> None:
    """List the streams."""
    print_rows(
        map(_stream_row, with_broker(lambda c: c.get_streams())), STREAM_COLUMNS, as_json=as_json
    )


@streams.command("show")
@stream_argument
@json_option
@connects
def show_stream(name: str, as_json: bool) -> None:
    """Show a stream and its topics."""
    details = with_broker(lambda c: stream_details(c, name))
    names = [topic.name for topic in details.topics]
    print_fields({**_stream_row(details.stream), "topic_names": names}, as_json=as_json)


async def stream_details(client: IggyClient, name: str) -> StreamDetails:
    from headrace.errors import NotFoundError

    details = await client.get_stream(name)
    if details is None:
        raise NotFoundError(f"there is no stream {name!r}")
    return details


def _stream_contents(name: str) -> str:
    """What would be lost, for a question."""
    stream = with_broker(lambda c: stream_details(c, name)).stream
    return (
        f"{name}: {stream.topics_count} topics with {stream.messages_count:,} messages, "
        f"{size(stream.size_bytes)}"
    )


@streams.command("rename")
@stream_argument
@argument("new", metavar="NEW_NAME")
@connects
def rename_stream(name: str, new: str) -> None:
    """Give a stream another name; its topics and their messages stay."""
    with_broker(lambda c: c.update_stream(name, new))
    note(f"renamed {name} to {new}")


@streams.command("purge")
@stream_argument
@yes_option
@connects
def purge_stream(name: str, yes: bool) -> None:
    """Remove all messages of a stream; its topics stay."""
    confirm(lambda: f"Remove all messages of {_stream_contents(name)}?", yes=yes)
    with_broker(lambda c: c.purge_stream(name))
    note(f"purged {name}")


@streams.command("delete")
@stream_argument
@yes_option
@connects
def delete_stream(name: str, yes: bool) -> None:
    """Delete a stream with its topics and their messages."""
    confirm(lambda: f"Delete {_stream_contents(name)}?", yes=yes)
    with_broker(lambda c: c.delete_stream(name))
    note(f"deleted {name}")


app = Group("topic", help="Topics: what messages are sent to.")

COLUMNS = (
    "name", "id", "partitions", "replicas", "messages", "bytes", "expiry_seconds", "max_bytes",
)  # fmt: skip
PARTITION_COLUMNS = ("partition", "messages", "next_offset", "bytes", "segments")


def _row(topic: Topic, stream: str) -> dict[str, Any]:
    """`expiry_seconds` and `max_bytes` are null where there is no bound."""
    never = topic.message_expiry_us == NEVER
    unlimited = topic.max_size_bytes == NEVER
    return {
        "stream": stream,
        "name": topic.name,
        "id": topic.id,
        "partitions": topic.partitions_count,
        "replicas": topic.replication_factor,
        "messages": topic.messages_count,
        "bytes": topic.size_bytes,
        "expiry_seconds": None if never else topic.message_expiry_us / 1e6,
        "max_bytes": None if unlimited else topic.max_size_bytes,
        "created_at_us": topic.created_at_us,
    }


async def details_of(client: IggyClient, stream: str, topic: str) -> TopicDetails:
    from headrace.errors import NotFoundError

    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    return details


@app.command("create")
@topic_argument
@option("--partitions", type=click.IntRange(min=1, max=1000), default=1)
@option(
    "--expiry",
    "expiry_seconds",
    type=float,
    default=0,
    help="Seconds a message is kept; 0 = the server's default.",
)
@option("--max-bytes", type=int, default=0, help="Size cap; 0 = the server's default.")
@option(
    "--replicas",
    type=click.IntRange(min=0, max=3),
    default=0,
    help="Data nodes that keep it; 0 = default.",
)
@json_option
@connects
def create(
    name: str, partitions: int, expiry_seconds: float, max_bytes: int, replicas: int, as_json: bool
) -> None:
    """Make a topic in an existing stream."""
    stream, topic = split_topic(name)
    details = with_broker(
        lambda c: c.create_topic(
            stream,
            topic,
            partitions_count=partitions,
            message_expiry_us=int(expiry_seconds * 1_000_000),
            max_size_bytes=max_bytes,
            replication_factor=replicas,
        ),
    )
    print_fields(_row(details.topic, stream), as_json=as_json)


@app.command("list")
@argument(
    "stream",
    required=False,
    metavar="STREAM",
    help="All if empty.",
    shell_complete=server_names.streams,
)
@json_option
@connects
def list_topics(stream: str | None, as_json: bool) -> None:
    """List the topics of a stream, or of all streams."""

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        if stream is not None:
            # Asked for the topics of a stream that is not there, servers answer with none.
            return [_row(one, stream) for one in (await stream_details(client, stream)).topics]
        return [
            _row(one, each.name)
            for each in await client.get_streams()
            for one in await client.get_topics(each.name)
        ]

    rows = with_broker(work)
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, COLUMNS if stream is not None else ("stream", *COLUMNS), as_json=False)


@app.command("show")
@topic_argument
@json_option
@connects
def show(name: str, as_json: bool) -> None:
    """Show a topic and its partitions."""
    stream, topic = split_topic(name)

    details = with_broker(lambda c: details_of(c, stream, topic))
    fields, rows = _row(details.topic, stream), partition_rows(details)
    if as_json:
        print_json({**fields, "partitions": rows})
        return
    print_fields(fields, as_json=False)
    print_rows(rows, PARTITION_COLUMNS, as_json=False)


def partition_rows(details: TopicDetails) -> list[dict[str, Any]]:
    return [
        {
            "partition": one.id,
            "messages": one.messages_count,
            "next_offset": one.next_offset,
            "bytes": one.size_bytes,
            "segments": one.segments_count,
        }
        for one in details.partitions
    ]


@app.command("update")
@topic_argument
@option("--name", "new_name", default="", help="Another name.")
@option(
    "--expiry", "expiry_seconds", type=float, help="Seconds a message is kept; 0 = never expires."
)
@option("--max-bytes", type=int, help="Size cap; 0 = unlimited.")
@option(
    "--replicas",
    type=click.IntRange(min=0, max=3),
    default=0,
    help="Data nodes that keep it; 0 = as it is.",
)
@json_option
@connects
def update(
    name: str,
    new_name: str,
    expiry_seconds: float | None,
    max_bytes: int | None,
    replicas: int,
    as_json: bool,
) -> None:
    """Change a topic; what is not named stays as it is."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> dict[str, Any]:
        old = (await details_of(client, stream, topic)).topic
        expiry = old.message_expiry_us
        if expiry_seconds is not None:
            expiry = int(expiry_seconds * 1_000_000) or NEVER
        size = old.max_size_bytes if max_bytes is None else max_bytes or NEVER
        await client.update_topic(
            stream, topic, new_name or old.name, compression=old.compression,
            message_expiry_us=expiry, max_size_bytes=size, replication_factor=replicas,
        )  # fmt: skip
        return _row((await details_of(client, stream, new_name or topic)).topic, stream)

    print_fields(with_broker(work), as_json=as_json)


def _contents(stream: str, topic: str) -> str:
    """What would be lost, for a question."""
    found = with_broker(lambda c: details_of(c, stream, topic)).topic
    return f"{stream}/{topic}: {found.messages_count:,} messages, {size(found.size_bytes)}"


@app.command("purge")
@topic_argument
@yes_option
@connects
def purge(name: str, yes: bool) -> None:
    """Remove all messages of a topic; offsets start at 0 again."""
    stream, topic = split_topic(name)
    confirm(lambda: f"Remove all messages of {_contents(stream, topic)}?", yes=yes)
    with_broker(lambda c: c.purge_topic(stream, topic))
    note(f"purged {name}")


@app.command("delete")
@topic_argument
@yes_option
@connects
def delete(name: str, yes: bool) -> None:
    """Delete a topic and its messages."""
    stream, topic = split_topic(name)
    confirm(lambda: f"Delete {_contents(stream, topic)}?", yes=yes)
    with_broker(lambda c: c.delete_topic(stream, topic))
    note(f"deleted {name}")
