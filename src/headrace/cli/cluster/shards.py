"""headrace shard list|move: which worker leads which shard, and giving a shard to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import Group, argument, json_option
from headrace.cli.output import print_fields, print_json, print_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.wire.iggy.messages.extensions import ShardMap

app = Group("shard", help="Shards: which worker leads which partitions.")

WORKERS = (
    "worker", "name", "host", "address", "role", "shards", "partitions", "connections", "requests",
    "requests_passed_on", "requests_taken_in", "loop_delay_ms", "cpu_percent", "memory_bytes",
)  # fmt: skip
SHARDS = ("shard", "worker", "name", "epoch", "partitions", "pinned")
_WORKERS_SHOWN = (
    "worker", "address", "role", "shards", "partitions", "connections", "requests",
    "requests_passed_on", "loop_delay_ms", "memory_bytes", "name",
)  # fmt: skip
_SHARDS_SHOWN = ("shard", "worker", "epoch", "partitions", "pinned")


def worker_rows(found: ShardMap) -> list[dict[str, Any]]:
    return [
        {
            "worker": one.number,
            "role": "coordinator" if one.coordinates else "worker",
            **{name: getattr(one, name) for name in WORKERS if name not in ("worker", "role")},
        }
        for one in found.workers
    ]


def shard_rows(found: ShardMap) -> list[dict[str, Any]]:
    """Workers by their numbers; one that is away has none, and is told by its name."""
    numbers = {one.name: one.number for one in found.workers}
    return [
        {
            "shard": one.shard,
            "worker": numbers.get(one.worker),
            "name": one.worker or None,
            "epoch": one.epoch if one.epoch >= 0 else None,
            "partitions": one.partitions,
            "pinned": numbers.get(one.pinned, one.pinned) if one.pinned else None,
        }
        for one in found.shards
    ]


@app.command("list")
@json_option
@connects
def list_shards(as_json: bool) -> None:
    """List the workers and how each does, and the shards with who leads each."""
    found = with_broker(lambda c: c.get_shards())
    workers, shards = worker_rows(found), shard_rows(found)
    if as_json:
        print_json({"workers": workers, "shards": shards})
        return
    print("Workers")
    print_rows(workers, _WORKERS_SHOWN, as_json=False)
    print("\nShards")
    print_rows(shards, _SHARDS_SHOWN, as_json=False)


@app.command("move")
@argument("shard", type=click.IntRange(min=0), metavar="SHARD")
@argument("worker", metavar="WORKER")
@json_option
@connects
def move_shard(shard: int, worker: str, as_json: bool) -> None:
    """Give a shard to a worker, by its number or name; it stays there while that worker lives.

    With "" for the worker, balance decides again where the shard is led. The first shard, 0, stays
    with the worker that coordinates.
    """
    moved = with_broker(lambda c: c.move_shard(shard, worker))
    if as_json:
        print_fields(
            {"shard": moved.shard, "worker": moved.worker or None, "pinned": moved.pinned or None},
            as_json=True,
        )
    elif not moved.pinned:
        note(f"balance decides where shard {shard} is led; {moved.worker or 'nobody'} leads it now")
    elif moved.worker == moved.pinned:
        note(f"shard {shard} is led by {moved.worker}")
    else:
        leader = moved.worker or "nobody"
        note(f"shard {shard} goes to {moved.pinned} as soon as it can; {leader} leads it now")
