"""What `headrace cluster status` shows, and how it is learned: one call per placement manager."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from headrace.assembly.links import check_addresses, node_connect, placement_links
from headrace.broker.roster import members_of
from headrace.cli.broker import client_tls
from headrace.cli.local_cluster import State
from headrace.cli.output import print_json, print_rows
from headrace.cli.secret import read_secret
from headrace.client.channels import Connect, Link
from headrace.client.sbp import SbpClient
from headrace.errors import (
    ConfigError,
    HeadraceError,
    NotLeaderError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
)
from headrace.net.addresses import format_address
from headrace.runtime.system import run, system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code

_ASK_SECONDS = 2.0


@dataclass(frozen=True)
class Status:
    placement_managers: list[dict[str, object]]
    data_nodes: list[dict[str, object]]
    brokers: list[dict[str, object]]
    streams: int
    ranges: int
    ranges_sealing: int
    ranges_under_replicated: int
    ranges_unavailable: int

    @property
    def healthy(self) -> bool:
        """Everybody there, everything replicated, somebody leads."""
        return (
            all(each["state"] in ("leader", "follower") for each in self.placement_managers)
            and all(node["alive"] for node in self.data_nodes)
            and any(broker["role"] == "leader" for broker in self.brokers)
            and not self.ranges_under_replicated
            and not self.ranges_sealing
        )


def look(data_dir: str, managers: Sequence[str] | None, secret: str) -> Status:
    if not managers:
        state = State.load(data_dir)
        managers, secret = state.placement_managers, secret or state.secret
        if not managers:
            raise ConfigError(
                f"no cluster was started in {data_dir}; choose its --data-dir, or give "
                "--placement-managers and --secret"
            )
    key = read_secret(secret, data_dir)
    return run(_ask(check_addresses(managers), key))


async def _ask(managers: Sequence[str], secret: bytes) -> Status:
    runtime = system_runtime()
    tls = client_tls()
    connect_to = node_connect(runtime, secret, "status", tls=tls)
    client = SbpClient(
        runtime,
        placement=placement_links(runtime, managers, secret, "status", tls=tls),
        node=connect_to,
        client_id="status",
    )
    try:
        states, described = await asyncio.gather(
            asyncio.gather(*(_state_of(connect_to(address)) for address in managers)),
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
    return _status(managers, states, described)


async def _state_of(connect: Connect) -> str:
    link = Link(connect)
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            query = m.LeaseRequest(action=m.LeaseAction.QUERY, name="broker")
            reply = await link.call(Code.LEASE, query, timeout=_ASK_SECONDS)
            raise_for_status(getattr(reply.message, "status", None))
    except NotLeaderError:
        return "follower"
    except TimeoutError:
        return "silent"
    except HeadraceError:
        return "unreachable"
    finally:
        await link.close()
    return "leader"


def _status(
    managers: Sequence[str], states: Sequence[str], described: m.DescribeClusterResponse
) -> Status:
    return Status(
        placement_managers=[
            {"address": address, "state": state}
            for address, state in zip(managers, states, strict=True)
        ],
        data_nodes=[_node(node) for node in described.nodes],
        brokers=[
            {
                "address": format_address(member.place.host, member.place.port),
                "role": "leader" if member.leads else "standby",
            }
            for member in members_of(described)
        ],
        streams=described.streams,
        ranges=described.ranges,
        ranges_sealing=described.ranges_sealing,
        ranges_under_replicated=described.ranges_short,
        ranges_unavailable=described.ranges_unavailable,
    )


def _node(info: m.NodeInfo) -> dict[str, object]:
    node = info.data_node or m.DataNode()
    return {
        "id": node.node_id,
        "address": node.advertise_addr,
        "alive": bool(info.is_alive),
        "draining": bool(info.is_draining),
        "disk_free_bytes": info.disk_free_bytes if info.disk_free_bytes >= 0 else None,
        "ranges": info.ranges,
        "open_ranges": info.open_ranges,
    }


def show(status: Status, *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(status), "healthy": status.healthy})
        return
    print("Placement managers")
    print_rows(status.placement_managers, ("address", "state"), as_json=False)
    print("\nData nodes")
    columns = ("id", "address", "alive", "draining", "disk_free", "ranges", "open_ranges")
    nodes = [{**node, "disk_free": _size(node["disk_free_bytes"])} for node in status.data_nodes]
    print_rows(nodes, columns, as_json=False)
    print("\nBrokers")
    print_rows(status.brokers, ("address", "role"), as_json=False)
    print(f"\n{status.streams} streams, {status.ranges} ranges: {_replication(status)}")


def _replication(status: Status) -> str:
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


def _size(value: object) -> str:
    return f"{value / (1 << 30):.1f} GiB" if isinstance(value, int) else "-"
