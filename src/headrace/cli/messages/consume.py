"""headrace consume: messages on standard output, one per line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.connection import connects, with_link
from headrace.cli.declare import command, json_option, option, split_topic
from headrace.cli.messages.points import FORMS, is_point, parse_time_us
from headrace.cli.server_names import topic_argument

if TYPE_CHECKING:
    from headrace.client.connection import BrokerConnection

RETRY_SECONDS = 30.0  # without --follow; with it, until somebody ends it


@command("consume")
@topic_argument
@option("--from", "start", default="earliest", help=f"{FORMS}.")
@option(
    "--partition", type=click.IntRange(min=-1), default=-1, help="Only this partition; -1 = all."
)
@option(
    "--group",
    default="",
    help="Read as a member of this group: from where it is, and store how far that came.",
)
@option("--count", "-n", type=click.IntRange(min=0), default=0, help="Stop after; 0 = no limit.")
@option("--follow", is_flag=True, help="Wait for new messages, and for the topic.")
@json_option
@connects
def consume(
    name: str, start: str, partition: int, group: str, count: int, follow: bool, as_json: bool
) -> None:
    """Print messages, partition by partition in offset order; stores no offsets without --group."""
    if group and partition >= 0:
        raise click.BadParameter("a group shares the partitions out; leave --partition out")
    if not is_point(start):
        parse_time_us(start)  # said before anything is asked
    stream, topic = split_topic(name)

    async def work(link: BrokerConnection) -> None:
        from headrace.cli.messages.consuming import Reading

        reading = Reading(stream, topic, count=count, follow=follow, as_json=as_json)
        await reading.wait_for_topic(link)
        if group:
            await reading.as_member(link, group, start)
        else:
            await reading.alone(link, partition, start)

    try:
        with_link(work, retry_seconds=float("inf") if follow else RETRY_SECONDS)
    except KeyboardInterrupt:
        raise click.exceptions.Exit from None
