"""headrace partition list|add|remove, headrace segment list|delete"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connection import client_tls, connects, with_broker
from headrace.cli.options import AsJson, TopicName, Yes, confirm, split_topic
from headrace.cli.output import note, print_rows
from headrace.cli.topics.topics import PARTITION_COLUMNS, details_of, partition_rows

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient

app = typer.Typer(help="Partitions of topics.", no_args_is_help=True)
segments = typer.Typer(help="Segments: the files of a partition.", no_args_is_help=True)

Count = Annotated[int, typer.Argument(metavar="COUNT", min=1, max=1000)]
SEGMENT_COLUMNS = (
    "partition", "first_offset", "messages", "bytes", "newest_at_ms", "open",
)  # fmt: skip


@app.command("list")
@connects
def list_partitions(name: TopicName, as_json: AsJson = False) -> None:
    """List the partitions of a topic, and what each holds."""
    stream, topic = split_topic(name)
    details = with_broker(lambda c: details_of(c, stream, topic))
    print_rows(partition_rows(details), PARTITION_COLUMNS, as_json=as_json)


@app.command("add")
@connects
def add(name: TopicName, count: Count = 1) -> None:
    """Give a topic more partitions."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.create_partitions(stream, topic, count))
    note(f"added {count} to {name}")


@app.command("remove")
@connects
def remove(name: TopicName, count: Count = 1, yes: Yes = False) -> None:
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
@connects
def list_segments(
    name: TopicName,
    partition: Annotated[
        int, typer.Option("--partition", min=-1, help="Only of this partition; -1 = all.")
    ] = -1,
    as_json: AsJson = False,
) -> None:
    """List the segments of a topic, oldest first: what retention and `segment delete` remove."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        from headrace.client.tickets import Access, TicketReader
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
@connects
def delete_segments(
    name: TopicName,
    partition: Annotated[int, typer.Option("--partition", min=0)],
    count: Annotated[int, typer.Option("--count", min=1, help="The oldest so many.")] = 1,
    yes: Yes = False,
) -> None:
    """Delete the oldest segments of a partition, with their messages."""
    stream, topic = split_topic(name)
    confirm(
        f"Delete the oldest {count} closed segments of partition {partition} of {name}, with their "
        "messages?",
        yes=yes,
    )
    with_broker(lambda c: c.delete_segments(stream, topic, partition=partition, count=count))
    note(f"deleted up to {count} segments of partition {partition} of {name}")
