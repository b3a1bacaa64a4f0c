"""headrace topic create|list|show|update|purge|delete"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.broker import connects, with_broker
from headrace.cli.options import AsJson, TopicName, split_topic
from headrace.cli.output import note, print_fields, print_json, print_rows

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.topics import Topic, TopicDetails

app = typer.Typer(help="Topics: what messages are sent to.", no_args_is_help=True)

COLUMNS = ("name", "id", "partitions", "replicas", "messages", "bytes", "expiry", "max_bytes")
PARTITION_COLUMNS = ("partition", "messages", "next_offset", "bytes", "segments")
_NEVER = 0xFFFF_FFFF_FFFF_FFFF


def _row(topic: Topic) -> dict[str, Any]:
    never = topic.message_expiry_us == _NEVER
    unlimited = topic.max_size_bytes == _NEVER
    return {
        "name": topic.name,
        "id": topic.id,
        "partitions": topic.partitions_count,
        "replicas": topic.replication_factor,
        "messages": topic.messages_count,
        "bytes": topic.size_bytes,
        "expiry": "never" if never else f"{topic.message_expiry_us / 1e6:g} s",
        "max_bytes": "unlimited" if unlimited else topic.max_size_bytes,
    }


async def _details(client: IggyClient, stream: str, topic: str) -> TopicDetails:
    from headrace.errors import NotFoundError

    details = await client.get_topic(stream, topic)
    if details is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}")
    return details


@app.command("create")
@connects
def create(
    name: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", min=0, max=1000)] = 1,
    expiry_seconds: Annotated[
        float, typer.Option("--expiry", help="Seconds a message is kept; 0 = the server's default.")
    ] = 0,
    max_bytes: Annotated[
        int, typer.Option("--max-bytes", help="Size cap; 0 = the server's default.")
    ] = 0,
    replicas: Annotated[
        int, typer.Option("--replicas", min=0, max=3, help="Data nodes that keep it; 0 = default.")
    ] = 0,
    as_json: AsJson = False,
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
    print_fields(_row(details.topic), as_json=as_json)


@app.command("list")
@connects
def list_topics(
    stream: Annotated[str, typer.Argument(metavar="STREAM")],
    as_json: AsJson = False,
) -> None:
    """List the topics of a stream."""
    found = with_broker(lambda c: c.get_topics(stream))
    print_rows(map(_row, found), COLUMNS, as_json=as_json)


@app.command("show")
@connects
def show(
    name: TopicName,
    as_json: AsJson = False,
) -> None:
    """Show a topic and its partitions."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        details = await _details(client, stream, topic)
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

    fields, rows = with_broker(work)
    if as_json:
        print_json({**fields, "partitions": rows})
        return
    print_fields(fields, as_json=False)
    print_rows(rows, PARTITION_COLUMNS, as_json=False)


@app.command("update")
@connects
def update(
    name: TopicName,
    new_name: Annotated[str, typer.Option("--name", help="Another name.")] = "",
    expiry_seconds: Annotated[
        float | None, typer.Option("--expiry", help="Seconds a message is kept; 0 = never expires.")
    ] = None,
    max_bytes: Annotated[
        int | None, typer.Option("--max-bytes", help="Size cap; 0 = unlimited.")
    ] = None,
    replicas: Annotated[
        int, typer.Option("--replicas", min=0, max=3, help="Data nodes that keep it; 0 = as it is.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Change a topic; what is not named stays as it is."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> dict[str, Any]:
        old = (await _details(client, stream, topic)).topic
        expiry = old.message_expiry_us
        if expiry_seconds is not None:
            expiry = int(expiry_seconds * 1_000_000) or _NEVER
        size = old.max_size_bytes if max_bytes is None else max_bytes or _NEVER
        await client.update_topic(
            stream, topic, new_name or old.name, compression=old.compression,
            message_expiry_us=expiry, max_size_bytes=size, replication_factor=replicas,
        )  # fmt: skip
        return _row((await _details(client, stream, new_name or topic)).topic)

    print_fields(with_broker(work), as_json=as_json)


@app.command("purge")
@connects
def purge(name: TopicName) -> None:
    """Remove all messages of a topic; offsets start at 0 again."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.purge_topic(stream, topic))
    note(f"purged {name}")


@app.command("delete")
@connects
def delete(
    name: TopicName,
) -> None:
    """Delete a topic and its messages."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.delete_topic(stream, topic))
    note(f"deleted {name}")
