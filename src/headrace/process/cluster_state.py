"""What the placement managers know of the cluster: for `headrace cluster status` and the pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from headrace.broker.shards.leases import COORDINATOR, WORKER_PREFIX, shard_of
from headrace.broker.term.broker_registry import LEADER_LEASE, listed_brokers
from headrace.errors import HeadraceError, NotLeaderError
from headrace.net.addresses import format_address
from headrace.sbp_client.channels import Connect, ReconnectingChannel
from headrace.sbp_client.client import SbpClient
from headrace.web.broker_api import types as t
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import OutdatedMetadataError, raise_for_status
from headrace.wire.sbp.opcodes import Code

_ASK_SECONDS = 2.0
OUTDATED = (
    "the placement metadata is older than what data nodes have seen, and nothing is decided on it:"
    " bring the newer one back, or run `headrace cluster accept-metadata`"
)


class ClusterState:
    """`headrace.web.broker_api.overview.Cluster` over SBP."""

    def __init__(
        self, client: SbpClient, connect_to: Callable[[str], Connect], managers: Sequence[str]
    ) -> None:
        self._client = client
        self._connect_to = connect_to
        self._managers = managers

    async def describe(self) -> t.ClusterInfo:
        states, described = await asyncio.gather(
            self.manager_states(), self._client.describe_cluster(count_ranges=True)
        )
        return cluster_info(self._managers, states, described)

    async def manager_states(self) -> list[str]:
        return await asyncio.gather(
            *(_state_of(self._connect_to(address)) for address in self._managers)
        )

    async def ranges(self, streams: Sequence[tuple[int, int]]) -> list[t.RangeRow]:
        found = await self._client.list_ranges_of([stream for _, stream in streams])
        return [
            _range(partition, one) for partition, stream in streams for one in found.get(stream, ())
        ]

    async def durability(self, stream: int) -> str:
        found = await self._client.describe_stream(stream)
        return "written" if found.durability == m.Durability.WRITTEN else "synced"


async def _state_of(connect: Connect) -> str:
    link = ReconnectingChannel(connect)
    try:
        async with asyncio.timeout(_ASK_SECONDS):
            query = m.LeaseRequest(action=m.LeaseAction.QUERY, name="broker")
            reply = await link.call(Code.LEASE, query, timeout=_ASK_SECONDS)
            raise_for_status(getattr(reply.message, "status", None))
    except NotLeaderError:
        return "follower"
    except OutdatedMetadataError:
        return "outdated"
    except TimeoutError:
        return "silent"
    except HeadraceError:
        return "unreachable"
    finally:
        await link.close()
    return "leader"


def cluster_info(
    managers: Sequence[str], states: Sequence[str], described: m.DescribeClusterResponse
) -> t.ClusterInfo:
    nodes = [_node(one) for one in described.nodes]
    brokers = _brokers(described)
    listed = [
        t.ManagerRow(address=address, state=state)
        for address, state in zip(managers, states, strict=True)
    ]
    problems = _problems(listed, nodes, brokers, described)
    return t.ClusterInfo(
        healthy=not problems,
        problems=problems,
        placement_managers=listed,
        data_nodes=nodes,
        brokers=brokers,
        streams=described.streams,
        ranges=described.ranges,
        ranges_sealing=described.ranges_sealing,
        ranges_under_replicated=described.ranges_short,
        ranges_unavailable=described.ranges_unavailable,
        notes=_notes(nodes),
        metadata_version=described.metadata_version,
        metadata_seen=described.metadata_seen,
        ranges_torn=[_torn(one) for one in described.ranges_torn],
        workers=_workers(described),
    )


def _brokers(described: m.DescribeClusterResponse) -> list[t.BrokerRow]:
    """A broker that shares its process with the data node has no listing of its own, and leads."""
    workers = {one.holder for one in described.leases if one.name.startswith(WORKER_PREFIX)}
    roles: dict[str, str] = {}
    for member in listed_brokers(described):
        address = format_address(member.address.host, member.address.port)
        leads = member.leads or member.id in workers  # each worker leads, those of one port as one
        roles[address] = "leader" if leads else roles.get(address, "standby")
    found = [t.BrokerRow(address=address, role=role) for address, role in roles.items()]
    alone = next((one for one in described.leases if one.name == LEADER_LEASE and one.holder), None)
    if not found and alone is not None:
        # The lease of a worker says where other workers reach it, not where clients do.
        address = "" if alone.holder in workers else alone.address
        found.append(t.BrokerRow(address=address or "embedded", role="leader"))
    return found


def _workers(described: m.DescribeClusterResponse) -> list[t.WorkerLease]:
    led = Counter(one.holder for one in described.leases if shard_of(one.name) is not None)
    first = next((one.holder for one in described.leases if one.name == COORDINATOR), "")
    return [
        t.WorkerLease(
            name=one.holder,
            address=one.address,
            shards=led[one.holder],
            coordinates=one.holder == first,
        )
        for one in described.leases
        if one.name.startswith(WORKER_PREFIX) and one.holder
    ]


def _problems(
    managers: Sequence[t.ManagerRow],
    nodes: Sequence[t.NodeRow],
    brokers: Sequence[t.BrokerRow],
    described: m.DescribeClusterResponse,
) -> list[str]:
    """Everybody there, everything replicated, somebody leads; else why not."""
    found = [
        f"placement manager {one.address} is {one.state}"
        for one in managers
        if one.state not in ("leader", "follower")
    ]
    if described.metadata_seen > described.metadata_version >= 0:
        found.append(OUTDATED)
    for one in nodes:
        if not one.alive and one.address:
            found.append(f"data node {one.id} ({one.address}) is lost")
        elif not one.alive and one.ranges > 0:  # its number stays, with nothing in the end
            found.append(f"data node {one.id} was replaced; {one.ranges} ranges of it are copied")
    found += [
        f"data node {one.id} keeps {one.quarantined_ranges} ranges aside that the placement manager"
        " does not know; see `headrace range quarantined`"
        for one in nodes
        if one.quarantined_ranges
    ]
    if not any(one.role == "leader" for one in brokers):
        found.append("no broker leads")
    found += [_torn(one) for one in described.ranges_torn]
    for count, what in (
        (
            described.ranges_unavailable - len(described.ranges_torn),
            "without a living replica that has all of it",
        ),
        (described.ranges_short, "with too few replicas"),
        (described.ranges_sealing, "being sealed"),
    ):
        if count > 0:
            found.append(f"{count} range{'s' if count > 1 else ''} {what}")
    return found


def _notes(nodes: Sequence[t.NodeRow]) -> list[str]:
    """Where all nodes are on one machine, what tells them apart stands behind it."""
    machines = {
        one.host.removesuffix(f"/{one.host_id or one.address}")
        for one in nodes
        if one.host and one.host != one.address
    }
    shared = [
        one for one in nodes if one.address and one.host.endswith(f"/{one.host_id or one.address}")
    ]
    if len(machines) == 1 and len(shared) > 1:
        return [f"all {len(shared)} data nodes are on one machine: what it holds is lost with it"]
    return []


def _torn(one: m.Range) -> str:
    away = ", ".join(str(n.data_node.node_id) for n in one.replica_nodes if n.data_node is not None)
    return (
        f"range {one.range_index} of log stream {one.stream_id}: offsets {one.held_offset} to"
        f" {one.end_offset - 1} are on no living data node"
        + (f" (node {away} may have them)" if away else "")
        + f"; `headrace range accept-loss {one.stream_id} {one.range_index}` gives them up"
    )


def _node(info: m.NodeInfo) -> t.NodeRow:
    node = info.data_node or m.DataNode()
    return t.NodeRow(
        id=node.node_id,
        address=node.advertise_addr,
        alive=bool(info.is_alive),
        draining=bool(info.is_draining),
        disk_free_bytes=info.disk_free_bytes if info.disk_free_bytes >= 0 else None,
        ranges=info.ranges,
        open_ranges=info.open_ranges,
        host=info.host,
        host_id=info.host_id,
        quarantined_ranges=max(0, info.ranges_quarantined),
    )


def _range(partition: int, one: m.Range) -> t.RangeRow:
    return t.RangeRow(
        partition=partition,
        stream_id=one.stream_id,
        index=one.range_index,
        start_offset=one.start_offset,
        end_offset=one.end_offset if one.end_offset >= 0 else None,
        epoch=one.writer_epoch,
        acknowledgements=max(1, one.ack_quorum),
        replicas=[
            t.ReplicaRow(
                node_id=replica.data_node.node_id if replica.data_node else -1,
                address=replica.data_node.advertise_addr if replica.data_node else "",
                primary=replica.is_primary,
            )
            for replica in one.replica_nodes
        ],
    )
