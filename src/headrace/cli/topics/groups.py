"""headrace group and headrace offset: who reads a topic together, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.connection import connects, with_broker
from headrace.cli.options import AsJson, TopicName, Yes, confirm, split_topic
from headrace.cli.output import note, print_fields, print_json, print_rows
from headrace.cli.topics.topics import details_of

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages import consumers
    from headrace.wire.iggy.primitives import Consumer

app = typer.Typer(help="Consumer groups and their lag.", no_args_is_help=True)
offsets = typer.Typer(help="Stored offsets of consumers and groups.", no_args_is_help=True)

Group = Annotated[str, typer.Argument(metavar="GROUP")]
COLUMNS = ("name", "id", "partitions", "members")
LAG_COLUMNS = ("partition", "member", "stored", "next", "lag")
OFFSET_COLUMNS = ("partition", "stored", "next", "lag")


@app.command("list")
@connects
def list_groups(name: TopicName, as_json: AsJson = False) -> None:
    """List the groups of a topic."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        # Asked for the groups of a topic that is not there, servers answer with none.
        await details_of(client, stream, topic)
        return [_row(one) for one in await client.get_groups(stream, topic)]

    print_rows(with_broker(work), COLUMNS, as_json=as_json)


def _row(group: consumers.Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "id": group.id,
        "partitions": group.partitions_count,
        "members": group.members_count,
    }


@app.command("create")
@connects
def create(name: TopicName, group: Group, as_json: AsJson = False) -> None:
    """Make a group."""
    stream, topic = split_topic(name)
    made = with_broker(lambda c: c.create_group(stream, topic, group))
    print_fields(_row(made.group), as_json=as_json)


@app.command("delete")
@connects
def delete(name: TopicName, group: Group, yes: Yes = False) -> None:
    """Delete a group with its stored offsets."""
    stream, topic = split_topic(name)
    confirm(f"Delete group {group} of {name} with its stored offsets?", yes=yes)
    with_broker(lambda c: c.delete_group(stream, topic, group))
    note(f"deleted {group}")


@app.command("show")
@connects
def show(name: TopicName, group: Group, as_json: AsJson = False) -> None:
    """Show a group: who has which partition, and how far behind it is."""
    stream, topic = split_topic(name)

    async def work(client: IggyClient) -> list[dict[str, Any]]:
        from headrace.errors import NotFoundError
        from headrace.wire.iggy.primitives import Consumer

        found = await client.get_group(stream, topic, group)
        if found is None:
            raise NotFoundError(f"{name} has no group {group!r}")
        rows = await _progress(client, stream, topic, Consumer.group(group))
        owners = {p: member.id for member in found.members for p in member.partitions}
        return [{**row, "member": owners.get(row["partition"])} for row in rows]

    rows = with_broker(work)
    if as_json:
        print_json({"name": group, "lag": sum(row["lag"] for row in rows), "partitions": rows})
        return
    print_fields({"name": group, "lag": sum(row["lag"] for row in rows)}, as_json=False)
    print_rows(rows, LAG_COLUMNS, as_json=False)


async def _progress(
    client: IggyClient, stream: str, topic: str, consumer: Consumer
) -> list[dict[str, Any]]:
    """Per partition: the stored offset, the next one to be written, and what lies between."""
    details = await details_of(client, stream, topic)
    rows = []
    for partition in details.partitions:
        found = await client.get_consumer_offset(consumer, stream, topic, partition.id)
        stored = None if found is None else found.stored_offset
        rows.append(
            {
                "partition": partition.id,
                "stored": stored,
                "next": partition.next_offset,
                "lag": partition.lag(stored),
            }
        )
    return rows


Who = Annotated[
    str, typer.Argument(metavar="CONSUMER", help="A consumer's name or number, or a group's name.")
]
IsGroup = Annotated[bool, typer.Option("--group", help="CONSUMER is a group.")]
PartitionId = Annotated[int, typer.Option("--partition", min=0)]


def _consumer(who: str, *, group: bool) -> Consumer:
    from headrace.wire.iggy.primitives import Consumer

    identifier = int(who) if who.isdecimal() else who
    return Consumer.group(identifier) if group else Consumer.single(identifier)


@offsets.command("get")
@connects
def get(name: TopicName, who: Who, group: IsGroup = False, as_json: AsJson = False) -> None:
    """Show what a consumer has stored, and its lag."""
    stream, topic = split_topic(name)
    consumer = _consumer(who, group=group)
    rows = with_broker(lambda c: _progress(c, stream, topic, consumer))
    print_rows(rows, OFFSET_COLUMNS, as_json=as_json)


@offsets.command("set")
@connects
def set_offset(
    name: TopicName,
    who: Who,
    offset: Annotated[int, typer.Option("--offset", min=0, help="The last one that was read.")],
    partition: PartitionId,
    group: IsGroup = False,
) -> None:
    """Store an offset; reading goes on after it."""
    stream, topic = split_topic(name)
    consumer = _consumer(who, group=group)
    with_broker(
        lambda c: c.store_consumer_offset(
            consumer, stream, topic, offset=offset, partition=partition
        )
    )
    note(f"stored {offset} for {who} in partition {partition} of {name}")


@offsets.command("delete")
@connects
def delete_offset(
    name: TopicName,
    who: Who,
    partition: PartitionId,
    group: IsGroup = False,
    yes: Yes = False,
) -> None:
    """Forget a stored offset; reading starts anew."""
    stream, topic = split_topic(name)
    confirm(f"Forget the offset of {who} in partition {partition} of {name}?", yes=yes)
    consumer = _consumer(who, group=group)
    with_broker(lambda c: c.delete_consumer_offset(consumer, stream, topic, partition))
    note(f"deleted the offset of {who} in partition {partition} of {name}")
