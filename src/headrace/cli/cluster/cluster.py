"""headrace cluster: a whole cluster on this machine to try things with, and a look at any other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.cluster.cluster_client import DATA_DIR, sees_cluster, with_cluster
from headrace.cli.options import AsJson, takes_tls
from headrace.cli.output import print_fields
from headrace.cli.server import role_options as o

if TYPE_CHECKING:
    from headrace.sbp_client.client import SbpClient

app = typer.Typer(help="Run a local cluster; look at any.", no_args_is_help=True)

_Folder = Annotated[str, typer.Option("--data-dir", help="The local cluster's folder.")]


@app.command()
def start(
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=16, help="Data nodes.")] = 3,
    brokers: Annotated[int, typer.Option("--brokers", min=1, max=8, help="One leads.")] = 2,
    managers: Annotated[
        int, typer.Option("--managers", min=1, max=7, help="Placement managers; 1 needs no etcd.")
    ] = 3,
    data_dir: _Folder = DATA_DIR,
    iggy_port: Annotated[
        int, typer.Option("--iggy-port", help="Of the first broker; 0 = any free ones.")
    ] = 8090,
    http_port: Annotated[
        int, typer.Option("--http-port", help="A controller with dashboard; 0 = any, -1 = none.")
    ] = -1,
    metrics_port: Annotated[
        int,
        typer.Option(
            "--metrics-port",
            help="/metrics, /health, /ready of each role, on this port and those after it: "
            "managers, data nodes, brokers, controller. 0 = any, -1 = off.",
        ),
    ] = -1,
    dev: o.Dev = False,
    config: Annotated[
        str, typer.Option("--config", help="A TOML file with settings, for every role.")
    ] = "",
    detach: Annotated[
        bool, typer.Option("--detach", help="Run it in the background; `cluster stop` ends it.")
    ] = False,
    ready_file: o.ReadyFile = "",
) -> None:
    """Run a whole cluster on this machine: etcd, placement managers, data nodes, brokers."""
    from headrace.cli.cluster.local_cluster import Plan, run_attached, run_detached

    plan = Plan(
        nodes=nodes,
        brokers=brokers,
        managers=managers,
        data_dir=data_dir,
        iggy_port=iggy_port,
        http_port=http_port,
        metrics_port=metrics_port,
        dev=dev,
        config=config,
    )
    if detach:
        run_detached(plan, ready_file)
    else:
        run_attached(plan, ready_file)


@app.command("accept-metadata")
@sees_cluster
def accept_metadata(as_json: AsJson = False) -> None:
    """Go on with placement metadata that is older than what data nodes have seen.

    Only when the newer is lost. Ranges that came later in streams that it lists are listed again;
    streams that it does not list stay on the data nodes, kept aside (`headrace range quarantined`).
    """

    async def work(client: SbpClient) -> dict[str, Any]:
        answer = await client.adopt(accept_metadata=True)
        streams = sorted({one.stream_id for one in answer.ranges})
        return {"metadata_version": answer.metadata_version, "streams_adopted": streams}

    print_fields(with_cluster(work), as_json=as_json)


@app.command()
def stop(data_dir: _Folder = DATA_DIR) -> None:
    """Stop a cluster that was started with --detach, or in another terminal."""
    from headrace.cli.cluster.local_cluster import stop_cluster

    stop_cluster(data_dir)


@app.command()
@takes_tls
def status(
    data_dir: _Folder = DATA_DIR,
    placement_managers: o.PlacementManagers = None,
    secret: o.Secret = None,
    as_json: AsJson = False,
) -> None:
    """Who is there, who leads, and whether the log is replicated as it should be.

    Of the local cluster in --data-dir, or of any with --placement-managers and --secret.
    """
    from headrace.cli.cluster.cluster_status import look, show

    show(look(data_dir, placement_managers, secret or ""), as_json=as_json)
