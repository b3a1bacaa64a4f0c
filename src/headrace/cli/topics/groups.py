"""headrace group and headrace offset: who reads a topic together, and how far they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

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
from headrace.cli.output import print_fields, print_json, print_rows
from headrace.cli.server_names import topic_argument
from headrace.cli.topics.topics import details_of
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages import consumers
    from headrace.wire.iggy.primitives import Consumer

app = Group("group", help="Consumer groups and their lag.")
offsets = Group("offset", help="Stored offsets of consumers and groups.")

group_argument = argument("group", metavar="GROUP")
COLUMNS = ("name", "id", "partitions", "members")
LAG_COLUMNS = ("partition", "member", "stored", "next", "lag")
OFFSET_COLUMNS = ("partition", "stored", "next", "lag")


@app.command("list")
@topic_argument
@json_option
@connects
def list_groups(name: str, as_json: bool) -> None:
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
@topic_argument
@group_argument
@json_option
@connects
def create(name: str, group: str, as_json: bool) -> None:
    """Make a group."""
    stream, topic = split_topic(name)
    made = with_broker(lambda c: c.create_group(stream, topic, group))
    print_fields(_row(made.group), as_json=as_json)


@app.command("delete")
@topic_argument
@group_argument
@yes_option
@connects
def delete(name: str, group: str, yes: bool) -> None:
    """Delete a group with its stored offsets."""
    stream, topic = split_topic(name)
    confirm(f"Delete group {group} of {name} with its stored offsets?", yes=yes)
    with_broker(lambda c: c.delete_group(stream, topic, group))
    note(f"deleted {group}")


@app.command("show")
@topic_argument
@group_argument
@json_option
@connects
def show(name: str, group: str, as_json: bool) -> None:
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


who_argument = argument(
    "who", metavar="CONSUMER", help="A consumer's name or number, or a group's name."
)
is_group_option = option("--group", is_flag=True, help="CONSUMER is a group.")
partition_id_option = option("--partition", type=click.IntRange(min=0), required=True)


def _consumer(who: str, *, group: bool) -> Consumer:
    from headrace.wire.iggy.primitives import Consumer

    identifier = int(who) if who.isdecimal() else who
    return Consumer.group(identifier) if group else Consumer.single(identifier)


@offsets.command("get")
@topic_argument
@who_argument
@is_group_option
@json_option
@connects
def get(name: str, who: str, group: bool, as_json: bool) -> None:
    """Show what a consumer has stored, and its lag."""
    stream, topic = split_topic(name)
    consumer = _consumer(who, group=group)
    rows = with_broker(lambda c: _progress(c, stream, topic, consumer))
    print_rows(rows, OFFSET_COLUMNS, as_json=as_json)


@offsets.command("set")
@topic_argument
@who_argument
@option("--offset", type=click.IntRange(min=0), required=True, help="The last one that was read.")
@partition_id_option
@is_group_option
@connects
def set_offset(name: str, who: str, offset: int, partition: int, group: bool) -> None:
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
@topic_argument
@who_argument
@partition_id_option
@is_group_option
@yes_option
@connects
def delete_offset(name: str, who: str, partition: int, group: bool, yes: bool) -> None:
    """Forget a stored offset; reading starts anew."""
    stream, topic = split_topic(name)
    confirm(f"Forget the offset of {who} in partition {partition} of {name}?", yes=yes)
    consumer = _consumer(who, group=group)
    with_broker(lambda c: c.delete_consumer_offset(consumer, stream, topic, partition))
    note(f"deleted the offset of {who} in partition {partition} of {name}")
