"""headrace cluster: a whole cluster on this machine to try things with, and a look at any other.

`local_cluster.py` owns the processes of a local cluster and the file that names them. Every other
command asks the placement managers through `cluster_client.py`, which is where the options that say
which cluster become a connection. `ranges.py` has the commands of ranges and data nodes,
`shards.py` those of shards, which ask a broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.cluster.cluster_client import DATA_DIR, sees_cluster, with_cluster
from headrace.cli.connection import takes_tls
from headrace.cli.declare import Group, json_option, option
from headrace.cli.output import print_fields
from headrace.cli.server import role_options as o

if TYPE_CHECKING:
    from headrace.sbp_client.client import SbpClient

app = Group("cluster", help="Run a local cluster; look at any.")

_folder_option = option("--data-dir", default=DATA_DIR, help="The local cluster's folder.")


@app.command()
@option("--nodes", type=click.IntRange(min=1, max=16), default=3, help="Data nodes.")
@option("--brokers", type=click.IntRange(min=1, max=8), default=2, help="Brokers.")
@option(
    "--workers",
    type=click.IntRange(min=0, max=16),
    default=0,
    help="Processes of each broker, all of which lead; 0 = one broker leads, the others stand by.",
)
@option(
    "--managers",
    type=click.IntRange(min=1, max=7),
    default=3,
    help="Placement managers; 1 needs no etcd.",
)
@_folder_option
@option("--iggy-port", type=int, default=8090, help="Of the first broker; 0 = any free ones.")
@option(
    "--http-port", type=int, default=-1, help="A controller with dashboard; 0 = any, -1 = none."
)
@option(
    "--metrics-port",
    type=int,
    default=-1,
    help="/metrics, /health, /ready of each role, on this port and those after it: "
    "managers, data nodes, brokers, controller. 0 = any, -1 = off.",
)
@o.dev_option
@option("--config", default="", help="A TOML file with settings, for every role.")
@option("--detach", is_flag=True, help="Run it in the background; `cluster stop` ends it.")
@o.ready_file_option
def start(
    nodes: int,
    brokers: int,
    workers: int,
    managers: int,
    data_dir: str,
    iggy_port: int,
    http_port: int,
    metrics_port: int,
    dev: bool,
    config: str,
    detach: bool,
    ready_file: str,
) -> None:
    """Run a whole cluster on this machine: etcd, placement managers, data nodes, brokers."""
    from headrace.cli.cluster.local_cluster import LocalClusterPlan, run_attached, run_detached

    plan = LocalClusterPlan(
        nodes=nodes,
        brokers=brokers,
        workers=workers,
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
@json_option
@sees_cluster
def accept_metadata(as_json: bool) -> None:
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
@_folder_option
def stop(data_dir: str) -> None:
    """Stop a cluster that was started with --detach, or in another terminal."""
    from headrace.cli.cluster.local_cluster import stop_cluster

    stop_cluster(data_dir)


@app.command()
@_folder_option
@o.placement_managers_option
@o.secret_option
@json_option
@takes_tls
def status(
    data_dir: str, placement_managers: str | None, secret: str | None, as_json: bool
) -> None:
    """Who is there, who leads, and whether the log is replicated as it should be.

    Of the local cluster in --data-dir, or of any with --placement-managers and --secret.
    """
    from headrace.cli.cluster.cluster_status import look, show

    show(look(data_dir, placement_managers, secret or ""), as_json=as_json)
