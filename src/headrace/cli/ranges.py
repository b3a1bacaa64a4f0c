"""headrace range list|show, headrace node list|show: what the placement managers know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.cluster_client import sees_cluster, with_cluster
from headrace.cli.options import AsJson
from headrace.cli.output import print_fields, print_json, print_rows

if TYPE_CHECKING:
    from headrace.client.sbp import SbpClient
    from headrace.wire.sbp import messages as m

app = typer.Typer(
    help="Ranges: stretches of a log stream, each with its replicas.", no_args_is_help=True
)
nodes = typer.Typer(help="Data nodes of a cluster.", no_args_is_help=True)

COLUMNS = ("stream", "range", "start", "end", "state", "primary", "replicas", "epoch")
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
@sees_cluster
def list_ranges(
    stream: Annotated[
        int, typer.Option("--stream", min=-1, help="Only of this log stream; -1 = all.")
    ] = -1,
    node: Annotated[int, typer.Option("--node", min=-1, help="Only on this data node.")] = -1,
    as_json: AsJson = False,
) -> None:
    """List ranges: where each begins and ends, and which nodes hold it."""

    async def work(client: SbpClient) -> list[dict[str, Any]]:
        found = await (_of_nodes(client, node) if stream < 0 else client.list_ranges(stream))
        return [_row(one) for one in found if node < 0 or node in _nodes_of(one)]

    print_rows(with_cluster(work), COLUMNS, as_json=as_json)


@app.command("show")
@sees_cluster
def show_range(
    stream: Annotated[int, typer.Argument(metavar="STREAM-ID", min=0)],
    index: Annotated[int, typer.Argument(metavar="RANGE", min=0)],
    as_json: AsJson = False,
) -> None:
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
@sees_cluster
def list_quarantined(as_json: AsJson = False) -> None:
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
@sees_cluster
def give_back(
    stream: Annotated[int, typer.Argument(metavar="STREAM-ID", min=0)],
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Of a stream that is not listed any more and belongs to the cluster: "
            "p/<topic uid>/<partition>/<generation> is a partition's.",
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the ranges of a stream again that data nodes keep aside."""

    async def work(client: SbpClient) -> list[dict[str, Any]]:
        return [_row(one) for one in (await client.adopt(stream, name=name)).ranges]

    print_rows(with_cluster(work), COLUMNS, as_json=as_json)


@nodes.command("list")
@sees_cluster
def list_nodes(as_json: AsJson = False) -> None:
    """List the data nodes: who lives, who is leaving, what they hold."""
    print_rows(with_cluster(_nodes), NODES, as_json=as_json)


@nodes.command("show")
@sees_cluster
def show_node(
    node: Annotated[int, typer.Argument(metavar="NODE-ID", min=0)], as_json: AsJson = False
) -> None:
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

    from headrace.assembly.cluster_state import cluster_info

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
        "state": "open" if one.end_offset < 0 else "sealed",
        "primary": primary[0] if primary else None,
        "replicas": _nodes_of(one),
        "epoch": one.writer_epoch if one.writer_epoch >= 0 else None,
    }
