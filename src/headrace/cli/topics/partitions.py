"""headrace partition list|add|remove, headrace segment list|delete"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import client_tls, connects, with_broker
from headrace.cli.declare import (
    Group,
    argument,
    confirm,
    json_option,
    option,
    split_topic,
    yes_option,
)
from headrace.cli.output import print_rows
from headrace.cli.server_names import topic_argument
from headrace.cli.topics.topics import PARTITION_COLUMNS, details_of, partition_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient

app = Group("partition", help="Partitions of topics.")
segments = Group("segment", help="Segments: the files of a partition.")

count_argument = argument("count", type=click.IntRange(min=1, max=1000), default=1, metavar="COUNT")
SEGMENT_COLUMNS = (
    "partition", "first_offset", "messages", "bytes", "newest_at_ms", "open",
)  # fmt: skip


@app.command("list")
@topic_argument
@json_option
@connects
def list_partitions(name: str, as_json: bool) -> None:
    """List the partitions of a topic, and what each holds."""
    stream, topic = split_topic(name)
    details = with_broker(lambda c: details_of(c, stream, topic))
    print_rows(partition_rows(details), PARTITION_COLUMNS, as_json=as_json)


@app.command("add")
@topic_argument
@count_argument
@connects
def add(name: str, count: int) -> None:
    """Give a topic more partitions."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.create_partitions(stream, topic, count))
    note(f"added {count} to {name}")


@app.command("remove")
@topic_argument
@count_argument
@yes_option
@connects
def remove(name: str, count: int, yes: bool) -> None:
    """Remove the last partitions of a topic, with their messages."""
    stream, topic = split_topic(name)
    confirm(lambda: _question(stream, topic, count), yes=yes)
    with_broker(lambda c: c.delete_partitions(stream, topic, count))
    note(f"removed {count} from {name}")


def _question(stream: str, topic: str, count: int) -> str:
    rows = partition_rows(with_broker(lambda c: details_of(c, stream, topic)))[-count:]
    messages = sum(row["messages"] for row in rows)
    return (
        f"Remove the last {count} partitions of {stream}/{topic} with their {messages:,} messages?"
    )


@segments.command("list")
@topic_argument
@option(
    "--partition", type=click.IntRange(min=-1), default=-1, help="Only of this partition; -1 = all."
)
@json_option
@connects
def list_segments(name: str, partition: int, as_json: bool) -> None:
    """List the segments of a topic, oldest first: what retention and `segment delete` remove."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        from headrace.client.partition_reader import Access, TicketReader
        from headrace.errors import NotFoundError, RequestError

        if await client.hello() is None:
            raise RequestError("this server speaks plain Iggy, which tells nothing of segments")
        ticket = await client.read_ticket([(stream, topic)])
        streams = {("", one.partition): one.sbp_stream for one in ticket.topics[0].partitions}
        if partition >= 0:
            streams = {key: found for key, found in streams.items() if key[1] == partition}
            if not streams:
                raise NotFoundError(f"{name} has no partition {partition}")
        access = Access(ticket.ticket, ticket.expires_ms, ticket.placement, streams)
        reader = TicketReader(client.runtime, client_tls())
        rows: list[dict[str, Any]] = []
        try:
            for key in sorted(streams):
                rows += [
                    {
                        "partition": key[1],
                        "first_offset": one.base,
                        "messages": one.end - one.base,
                        "bytes": one.bytes,
                        "newest_at_ms": one.max_timestamp if one.end > one.base else None,
                        "open": one.open,
                    }
                    for one in await reader.segments(access, key)
                ]
        finally:
            await reader.close()
        return rows

    print_rows(with_broker(work), SEGMENT_COLUMNS, as_json=as_json)


@segments.command("delete")
@topic_argument
@option("--partition", type=click.IntRange(min=0), required=True)
@option("--count", type=click.IntRange(min=1), default=1, help="The oldest so many.")
@yes_option
@connects
def delete_segments(name: str, partition: int, count: int, yes: bool) -> None:
    """Delete the oldest segments of a partition, with their messages."""
    stream, topic = split_topic(name)
    confirm(
        f"Delete the oldest {count} closed segments of partition {partition} of {name}, with their "
        "messages?",
        yes=yes,
    )
    with_broker(lambda c: c.delete_segments(stream, topic, partition=partition, count=count))
    note(f"deleted up to {count} segments of partition {partition} of {name}")
