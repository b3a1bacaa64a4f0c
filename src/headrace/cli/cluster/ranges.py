"""headrace range list|show|accept-loss, node list|show: what the placement managers know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.cluster.cluster_client import sees_cluster, with_cluster
from headrace.cli.declare import Group, argument, json_option, option
from headrace.cli.output import print_fields, print_json, print_rows

if TYPE_CHECKING:
    from headrace.sbp_client.client import SbpClient
    from headrace.wire.sbp import messages as m

app = Group("range", help="Ranges: stretches of a log stream, each with its replicas.")
nodes = Group("node", help="Data nodes of a cluster.")

COLUMNS = (
    "stream", "range", "start", "end", "state", "primary", "replicas", "epoch", "missing",
    "given_up",
)  # fmt: skip
QUARANTINED = ("node", "stream", "range", "start", "end", "records", "replicas", "epoch")
SEGMENTS = ("base", "end", "bytes", "max_timestamp")
NODES = (
    "id",
    "address",
    "host",
    "alive",
    "draining",
    "disk_free_bytes",
    "ranges",
    "open_ranges",
    "quarantined_ranges",
)


@app.command("list")
@option(
    "--stream", type=click.IntRange(min=-1), default=-1, help="Only of this log stream; -1 = all."
)
@option("--node", type=click.IntRange(min=-1), default=-1, help="Only on this data node.")
@json_option
@sees_cluster
def list_ranges(stream: int, node: int, as_json: bool) -> None:
    """List ranges: where each begins and ends, and which nodes hold it."""

    async def work(client: SbpClient) -> list[dict[str, Any]]:
        found = await (_of_nodes(client, node) if stream < 0 else client.list_ranges(stream))
        return [_row(one) for one in found if node < 0 or node in _nodes_of(one)]

    print_rows(with_cluster(work), COLUMNS, as_json=as_json)


@app.command("show")
@argument("stream", type=click.IntRange(min=0), metavar="STREAM-ID")
@argument("index", type=click.IntRange(min=0), metavar="RANGE")
@json_option
@sees_cluster
def show_range(stream: int, index: int, as_json: bool) -> None:
    """Show a range: its replicas, how far it is written, and its segments."""

    async def work(client: SbpClient) -> dict[str, Any]:
        from headrace.errors import NotFoundError

        known = [one for one in await client.list_ranges(stream) if one.range_index == index]
        if not known:
            raise NotFoundError(f"stream {stream} has no range {index}; see `headrace range list`")
        told = await client.describe_range(stream, index)
        held = told.range.next_offset if told.range is not None else None
        segments = [{name: getattr(one, name) for name in SEGMENTS} for one in told.segments]
        return {**_row(known[0]), "next_offset": held, "segments": segments}

    found = with_cluster(work)
    if as_json:
        print_json(found)
        return
    print_fields({k: v for k, v in found.items() if k != "segments"}, as_json=False)
    if found["segments"]:
        print("\nsegments")
        print_rows(found["segments"], SEGMENTS, as_json=False)


@app.command("quarantined")
@json_option
@sees_cluster
def list_quarantined(as_json: bool) -> None:
    """List what data nodes keep aside: ranges that the placement manager does not know.

    They come back when it lists them again, or with `headrace range give-back`; otherwise they are
    removed after data_node.quarantine_ms.
    """

    async def work(client: SbpClient) -> list[dict[str, Any]]:
        return [
            {"node": node["id"], **_row(one), "records": one.next_offset - one.start_offset}
            for node in await _nodes(client)
            if node["alive"]
            for one in await client.quarantined(node["address"])
        ]

    print_rows(with_cluster(work), QUARANTINED, as_json=as_json)


@app.command("give-back")
@argument("stream", type=click.IntRange(min=0), metavar="STREAM-ID")
@option(
    "--name",
    default="",
    help="Of a stream that is not listed any more and belongs to the cluster: "
    "p/<topic uid>/<partition>/<generation> is a partition's.",
)
@json_option
@sees_cluster
def give_back(stream: int, name: str, as_json: bool) -> None:
    """List the ranges of a stream again that data nodes keep aside."""

    async def work(client: SbpClient) -> list[dict[str, Any]]:
        return [_row(one) for one in (await client.adopt(stream, name=name)).ranges]

    print_rows(with_cluster(work), COLUMNS, as_json=as_json)


@app.command("accept-loss")
@argument("stream", type=click.IntRange(min=0), metavar="STREAM-ID")
@argument("index", type=click.IntRange(min=0), metavar="RANGE")
@option("--dry-run", is_flag=True, help="Only say what would be given up.")
@option("--yes", is_flag=True, help="Do not ask.")
@json_option
@sees_cluster
def accept_loss(stream: int, index: int, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Give up the end of a range that no living data node has, for ever.

    For disks that do not come back: readers then go on behind it, and what is left is copied to as
    many nodes as it should be on. A node that comes back later gives up its copy of it, too.
    """
    from headrace.errors import ConfigError

    found = with_cluster(lambda client: _loss(client, stream, index))
    if not dry_run:
        if not yes and not _confirms(found):
            raise ConfigError("nothing was given up; say --yes if that is what you want")
        with_cluster(lambda client: client.accept_loss(stream, index, found["held"]))
    told = {**found, "given_up": not dry_run}
    if as_json:
        print_json(told)
        return
    print_fields({k: v for k, v in told.items() if k != "given_up"}, as_json=False)
    print("\nnothing was changed" if dry_run else "\ngiven up")


def _confirms(found: dict[str, Any]) -> bool:
    import sys

    question = f"Give up offsets {found['lost']} ({found['records']} records) for ever?"
    return sys.stdin.isatty() and click.confirm(question, err=True)


async def _loss(client: SbpClient, stream: int, index: int) -> dict[str, Any]:
    """What living nodes hold of a range, and what is lost if the others do not come back."""
    from headrace.errors import InvalidArgumentError, NotFoundError

    known = [one for one in await client.list_ranges(stream) if one.range_index == index]
    if not known:
        raise NotFoundError(f"stream {stream} has no range {index}; see `headrace range list`")
    one = known[0]
    alive = {node["id"] for node in await _nodes(client) if node["alive"]}
    replicas = _nodes_of(one)
    held = one.held_offset
    if held < 0 <= one.end_offset and not alive & set(replicas):
        held = one.start_offset  # nobody is left
    if held < 0 or held >= one.end_offset:
        raise InvalidArgumentError(
            f"nothing is missing of range {index} of stream {stream}: a living data node has all"
            " of it, it is open, or they have not answered yet"
        )
    return {
        "stream": stream,
        "name": (await client.describe_stream(stream)).name,
        "range": index,
        "kept": _span(one.start_offset, held) if held > one.start_offset else None,
        "lost": _span(held, one.end_offset),
        "records": one.end_offset - held,
        "held": held,
        "nodes_that_may_have_it": [node for node in replicas if node not in alive],
    }


@nodes.command("list")
@json_option
@sees_cluster
def list_nodes(as_json: bool) -> None:
    """List the data nodes: who lives, who is leaving, what they hold."""
    print_rows(with_cluster(_nodes), NODES, as_json=as_json)


@nodes.command("show")
@argument("node", type=click.IntRange(min=0), metavar="NODE-ID")
@json_option
@sees_cluster
def show_node(node: int, as_json: bool) -> None:
    """Show a data node and the ranges it holds."""

    async def work(client: SbpClient) -> dict[str, Any]:
        from headrace.errors import NotFoundError

        row = next((one for one in await _nodes(client) if one["id"] == node), None)
        if row is None:
            raise NotFoundError(f"there is no data node {node}; see `headrace node list`")
        held = [_row(one) for one in await _of_nodes(client, node)]
        return {**row, "held": held}

    found = with_cluster(work)
    if as_json:
        print_json(found)
        return
    print_fields({k: v for k, v in found.items() if k != "held"}, as_json=False)
    print("\nranges held")
    print_rows(found["held"], COLUMNS, as_json=False)


async def _nodes(client: SbpClient) -> list[dict[str, Any]]:
    import msgspec

    from headrace.process.cluster_state import cluster_info

    described = await client.describe_cluster(count_ranges=True)
    return [msgspec.to_builtins(node) for node in cluster_info((), (), described).data_nodes]


async def _of_nodes(client: SbpClient, node: int) -> list[m.Range]:
    """Of one data node, or of all; a range is told once."""
    wanted = [one["id"] for one in await _nodes(client) if node < 0 or one["id"] == node]
    found: dict[tuple[int, int], m.Range] = {}
    for each in wanted:
        for one in await client.list_ranges_on(int(each)):
            found[one.stream_id, one.range_index] = one
    return [found[key] for key in sorted(found)]


def _nodes_of(one: m.Range) -> list[int]:
    return [
        replica.data_node.node_id for replica in one.replica_nodes if replica.data_node is not None
    ]


def _row(one: m.Range) -> dict[str, Any]:
    primary = [
        replica.data_node.node_id
        for replica in one.replica_nodes
        if replica.is_primary and replica.data_node is not None
    ]
    return {
        "stream": one.stream_id,
        "range": one.range_index,
        "start": one.start_offset,
        "end": one.end_offset if one.end_offset >= 0 else None,
        "state": _state(one),
        "primary": primary[0] if primary else None,
        "replicas": _nodes_of(one),
        "epoch": one.writer_epoch if one.writer_epoch >= 0 else None,
        "missing": _span(one.held_offset, one.end_offset) if one.held_offset >= 0 else None,
        "given_up": _span(one.end_offset, one.lost_until) if one.lost_until >= 0 else None,
    }


def _state(one: m.Range) -> str:
    if one.end_offset < 0:
        return "open"
    if one.held_offset >= 0:
        return "end missing"  # on no living node
    return "sealed" if one.doubtful_offset < 0 else "end being copied"


def _span(start: int, end: int) -> str:
    return f"{start}-{end - 1}"
