"""What `headrace cluster status` shows, and how it is learned: one call per placement manager."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from headrace.cli.cluster.cluster_client import find_cluster
from headrace.cli.connection import client_tls
from headrace.cli.output import print_json, print_rows
from headrace.errors import (
    ConfigError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.observability.escaping import escape
from headrace.process.cluster_connections import node_connect, placement_links
from headrace.process.cluster_state import ClusterState, cluster_info
from headrace.runtime.system import run, system_runtime
from headrace.sbp_client.client import SbpClient
from headrace.web.broker_api.types import ClusterInfo


def look(data_dir: str, managers: str | None, secret: str) -> ClusterInfo:
    return run(_ask(*find_cluster(data_dir, managers, secret)))


async def _ask(managers: Sequence[str], secret: bytes) -> ClusterInfo:
    runtime = system_runtime()
    tls = client_tls()
    connect_to = node_connect(runtime, secret, "status", tls=tls)
    client = SbpClient(
        runtime,
        placement=placement_links(runtime, managers, secret, "status", tls=tls),
        node=connect_to,
        client_id="status",
    )
    state = ClusterState(client, connect_to, managers)
    try:
        states, described = await asyncio.gather(
            state.manager_states(),
            client.describe_cluster(count_ranges=True),
            return_exceptions=True,
        )
    finally:
        await client.close()
    if isinstance(states, BaseException):
        raise states
    if isinstance(described, (UnauthenticatedError, UnauthorizedError)):
        raise ConfigError(f"the placement manager does not know this secret: {described}")
    if isinstance(described, BaseException):
        listed = ", ".join(f"{a} {s}" for a, s in zip(managers, states, strict=True))
        raise UnavailableError(f"no placement manager leads ({listed})") from described
    return cluster_info(managers, states, described)


def show(status: ClusterInfo, *, as_json: bool) -> None:
    listed = msgspec.to_builtins(status)
    if as_json:
        print_json(listed)
        return
    print("Placement managers")
    print_rows(listed["placement_managers"], ("address", "state"), as_json=False)
    print("\nData nodes")
    columns = (
        "id", "address", "host", "alive", "draining", "disk_free_bytes", "ranges", "open_ranges",
    )  # fmt: skip
    print_rows(listed["data_nodes"], columns, as_json=False)
    print("\nBrokers")
    print_rows(listed["brokers"], ("address", "role"), as_json=False)
    if listed["workers"]:
        print("\nWorkers")
        for one in listed["workers"]:
            one["role"] = "coordinator" if one["coordinates"] else "worker"
        print_rows(listed["workers"], ("name", "role", "shards", "address"), as_json=False)
    print(f"\n{status.streams} streams, {status.ranges} ranges: {_replication(status)}")
    for told in status.notes:
        print(f"  {told}")
    for problem in status.problems:
        print(f"! {escape(problem)}")


def _replication(status: ClusterInfo) -> str:
    found = [
        f"{count} {what}"
        for count, what in (
            (status.ranges_under_replicated, "under-replicated"),
            (status.ranges_unavailable, "unavailable"),
            (status.ranges_sealing, "being sealed"),
        )
        if count
    ]
    return ", ".join(found) or "all replicated as wanted"
