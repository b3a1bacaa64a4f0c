"""headrace partition add|remove, headrace segment delete"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.broker import connects, with_broker
from headrace.cli.options import TopicName, split_topic
from headrace.cli.output import note

app = typer.Typer(help="Partitions of topics.", no_args_is_help=True)
segments = typer.Typer(help="Segments: the files of a partition.", no_args_is_help=True)

Count = Annotated[int, typer.Argument(metavar="COUNT", min=1, max=1000)]


@app.command("add")
@connects
def add(name: TopicName, count: Count = 1) -> None:
    """Give a topic more partitions."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.create_partitions(stream, topic, count))
    note(f"added {count} to {name}")


@app.command("remove")
@connects
def remove(name: TopicName, count: Count = 1) -> None:
    """Remove the last partitions of a topic, with their messages."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.delete_partitions(stream, topic, count))
    note(f"removed {count} from {name}")


@segments.command("delete")
@connects
def delete_segments(
    name: TopicName,
    partition: Annotated[int, typer.Option("--partition", min=0)],
    count: Annotated[int, typer.Option("--count", min=1, help="The oldest so many.")] = 1,
) -> None:
    """Delete the oldest segments of a partition, with their messages."""
    stream, topic = split_topic(name)
    with_broker(lambda c: c.delete_segments(stream, topic, partition=partition, count=count))
    note(f"deleted up to {count} segments of partition {partition} of {name}")
