"""headrace client and headrace server: who is connected, and how the server does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import Group, argument, json_option, option
from headrace.cli.output import print_fields, print_json, print_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.system import ClientDetails, ClientInfo

app = Group("client", help="Connected clients.")
server = Group("server", help="The broker itself.")

COLUMNS = ("id", "user", "address", "transport", "groups")
# What figures of the protocol are, where their names do not say it.
_FIGURES = {
    "cpu_usage": "cpu_percent", "total_cpu_usage": "machine_cpu_percent",
    "memory_usage": "memory_bytes", "total_memory": "machine_memory_bytes",
    "available_memory": "memory_free_bytes",
    "free_disk_space": "disk_free_bytes", "total_disk_space": "disk_bytes",
    "start_time_us": "started_at_us", "run_time_us": "running_us",
}  # fmt: skip


def _row(client: ClientInfo) -> dict[str, Any]:
    return {
        "id": client.client_id,
        "user": client.user_id,
        "address": client.address,
        "transport": client.transport.name.lower(),
        "groups": client.groups_count,
    }


def _details(found: ClientDetails) -> dict[str, Any]:
    return {
        **_row(found.client),
        "groups": [f"{each.stream_id}/{each.topic_id}/{each.group_id}" for each in found.groups],
    }


@app.command("list")
@json_option
@connects
def list_clients(as_json: bool) -> None:
    """List who is connected, with the number of the user it logged in as."""
    print_rows(map(_row, with_broker(lambda c: c.get_clients())), COLUMNS, as_json=as_json)


@app.command("show")
@argument("number", type=click.IntRange(min=0), metavar="ID")
@json_option
@connects
def show(number: int, as_json: bool) -> None:
    """Show a client and its groups."""

    async def work(client: IggyClient) -> dict[str, Any]:
        from headrace.errors import NotFoundError

        found = await client.get_client(number)
        if found is None:
            raise NotFoundError(f"there is no client {number}; see `headrace client list`")
        return _details(found)

    print_fields(with_broker(work), as_json=as_json)


@app.command("me")
@json_option
@connects
def me(as_json: bool) -> None:
    """Show the connection of this very command."""
    print_fields(_details(with_broker(lambda c: c.get_me())), as_json=as_json)


@server.command("ping")
@json_option
@connects
def ping(as_json: bool) -> None:
    """Measure a round trip."""

    async def work(client: IggyClient) -> float:
        from time import perf_counter

        started = perf_counter()
        await client.ping()
        return perf_counter() - started

    print_fields({"milliseconds": round(with_broker(work) * 1e3, 3)}, as_json=as_json)


@server.command("stats")
@json_option
@connects
def stats(as_json: bool) -> None:
    """Show the server's figures."""
    from dataclasses import asdict

    found = asdict(with_broker(lambda c: c.get_stats()))
    found.pop("cache_metrics")
    if not as_json:
        found = {_FIGURES.get(name, name): value for name, value in found.items()}
    print_fields(found, as_json=as_json)


@server.command("nodes")
@json_option
@connects
def nodes(as_json: bool) -> None:
    """List the brokers of the cluster as clients see them."""
    found = with_broker(lambda c: c.get_cluster_metadata())
    rows = [
        {"name": node.name, "address": f"{node.ip}:{node.tcp_port}", "role": node.role.name.lower(),
         "status": node.status.name.lower()}
        for node in found.nodes
    ]  # fmt: skip
    print_rows(rows, ("name", "address", "role", "status"), as_json=as_json)


@server.command("snapshot")
@option(
    "--output",
    "-o",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    help="Where to write the ZIP.",
)
@json_option
@connects
def snapshot(file: Path, as_json: bool) -> None:
    """Fetch what a maintainer would ask for: configuration, figures, logs, processes."""
    archive = with_broker(lambda c: c.get_snapshot())
    try:
        file.write_bytes(archive)
    except OSError as error:
        from headrace.errors import ConfigError

        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    if as_json:
        print_json({"file": str(file), "bytes": len(archive)})
    else:
        note(f"wrote {len(archive)} bytes to {file}")
