"""PING, statistics, cluster metadata, clients; of Headrace's own commands HELLO and READ_TICKET."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from headrace.broker.catalogue.options import TOPIC_OPTIONS
from headrace.broker.catalogue.resources import Topic
from headrace.broker.core import Broker
from headrace.broker.handlers.views import open_logs
from headrace.broker.sessions.sessions import Session
from headrace.broker.shards.messages import ClientState
from headrace.broker.term.broker_registry import BrokerAddress, listed_brokers
from headrace.errors import HeadraceError, StateError
from headrace.net.credentials import make_ticket
from headrace.sbp_client.ranges import replica_addresses
from headrace.wire.iggy.commands import SERVED
from headrace.wire.iggy.detection import SpokenDialect
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages import extensions
from headrace.wire.iggy.messages import system as m
from headrace.wire.iggy.refusals import InvalidClientIdError


async def ping(broker: Broker, session: Session, request: m.Empty) -> None:
    """A sign of life; other commands are none, as in the reference server."""
    broker.sessions.on_ping(session, broker.runtime.clock.monotonic())


async def get_stats(broker: Broker, session: Session, request: m.Empty) -> m.Stats:
    catalogue, figures = broker.catalogue, broker.figures()
    topics = list(catalogue.topics())
    logs = [log for logs in (await open_logs(broker, topics)).values() for log in logs]
    opened = [log for log in logs if log is not None]
    identity = broker.identity
    return m.Stats(
        process_id=figures.pid,
        cpu_usage=figures.cpu_percent,
        total_cpu_usage=figures.total_cpu_percent,
        memory_usage=figures.memory,
        total_memory=figures.total_memory,
        available_memory=figures.available_memory,
        run_time_us=max(0, broker.runtime.clock.now_us() - identity.started_us),
        start_time_us=identity.started_us,
        read_bytes=figures.read_bytes,
        written_bytes=figures.written_bytes,
        messages_size_bytes=sum(log.size_bytes for log in opened),
        streams_count=len(catalogue.streams),
        topics_count=len(topics),
        partitions_count=sum(len(topic.partitions) for topic in topics),
        segments_count=sum(max(1, len(log.segments)) for log in opened),
        messages_count=sum(log.messages_count for log in opened),
        clients_count=len(broker.sessions) + len(await broker.workers.clients()),
        consumer_groups_count=catalogue.groups_count(),
        hostname=figures.hostname,
        os_name=figures.os_name,
        os_version=figures.os_version,
        kernel_version=figures.kernel_version,
        server_version=identity.version,
        server_semver=m.semver(identity.version),
        threads_count=figures.threads,
        free_disk_space=figures.free_disk,
        total_disk_space=figures.total_disk,
    )


async def get_snapshot_file(broker: Broker, session: Session, request: m.GetSnapshot) -> m.Snapshot:
    def usage() -> dict[str, Any]:
        return {**asdict(broker.figures()), **counters}

    counters = {**broker.traffic.totals(), "clients": len(broker.sessions)}
    return m.Snapshot(await broker.snapshots.make(request.compression, request.types, usage))


async def get_cluster_metadata(
    broker: Broker, session: Session, request: m.Empty
) -> m.ClusterMetadata:
    """Us, who answer, and the other brokers, which stand by or lead something else. With one node
    alone an SDK stays where it is; with several it goes to the leader's address, if it is not there
    already: whoever answers leads what it is asked for, or passes it on. Brokers of one machine
    that share a port are one to clients."""
    host, port = broker.address
    here = BrokerAddress(host, port, broker.quic_port)
    places = [here]
    try:
        members = listed_brokers(await broker.registry.describe())
        others = {(each.address.host, each.address.port): each.address for each in members}
        others.pop((host, port), None)
        places += others.values()
    except HeadraceError:
        pass  # the placement manager is away: nobody needs to be sent anywhere
    name = broker.identity.cluster_name
    nodes = [
        m.ClusterNode(
            name=f"{name}-broker" if len(places) == 1 else f"{name}-broker-{number}",
            ip=place.host,
            tcp_port=place.port,
            quic_port=place.quic_port,
            http_port=0,
            websocket_port=0,
            role=m.NodeRole.LEADER if place is here else m.NodeRole.FOLLOWER,
            status=m.NodeStatus.HEALTHY,
        )
        for number, place in enumerate(places, 1)
    ]
    return m.ClusterMetadata(name, tuple(nodes))


async def describe_options(
    broker: Broker, session: Session, request: m.DescribeOptions
) -> m.DescribedOptions:
    """Streams and users have no options that do anything."""
    known = TOPIC_OPTIONS if request.scope is m.OptionScope.TOPIC else ()
    return m.DescribedOptions(
        tuple(m.OptionInfo(o.key, o.kind, o.default_value, o.description) for o in known)
    )


async def get_me(broker: Broker, session: Session, request: m.Empty) -> m.ClientDetails:
    return _details(broker, session)


async def get_client(
    broker: Broker, session: Session, request: m.GetClient
) -> m.ClientDetails | None:
    if request.client_id == 0:
        raise InvalidClientIdError(client=0)
    found = broker.sessions.get(request.client_id)
    if found is None:
        for client in await broker.workers.clients():
            if client.client_id == request.client_id:
                found = _session_of(client)
    return None if found is None else _details(broker, found)


async def get_clients(broker: Broker, session: Session, request: m.Empty) -> m.Clients:
    elsewhere = [_session_of(client) for client in await broker.workers.clients()]
    # One that moves from worker to worker may be told of by both.
    sessions = {each.client_id: each for each in [*elsewhere, *broker.sessions]}
    return m.Clients(tuple(_details(broker, other).client for other in sessions.values()))


def _session_of(client: ClientState) -> Session:
    """A client that is connected to another worker."""
    session = Session(client.client_id, client.address, SpokenDialect(Dialect.B2))
    session.user_uid = client.user_uid
    session.transport = m.TransportKind(client.transport)
    return session


def _details(broker: Broker, session: Session) -> m.ClientDetails:
    groups = []
    for uid in broker.membership.groups_of(session.client_id):
        found = broker.catalogue.group_by_uid(uid)
        if found is not None:
            topic, group = found
            stream = broker.catalogue.stream_by_uid(topic.stream_uid)
            assert stream is not None, "a topic lives in a stream"
            groups.append(m.ClientGroup(stream.id, topic.id, group.id))
    user = None
    if session.user_uid is not None:
        user = broker.catalogue.user_by_uid(session.user_uid)
    return m.ClientDetails(
        m.ClientInfo(
            client_id=session.client_id,
            user_id=None if user is None else user.id,
            transport=session.transport,
            address=session.address,
            groups_count=len(groups),
        ),
        tuple(groups),
    )


_FIRST_EXTENSION = 9000


async def hello(broker: Broker, session: Session, request: m.Empty) -> extensions.ServerHello:
    return extensions.ServerHello(
        version=broker.identity.version,
        cluster=broker.cluster_uuid,
        features=tuple(row.name for code, row in SERVED.items() if code > _FIRST_EXTENSION),
    )


async def read_ticket(
    broker: Broker, session: Session, request: extensions.ReadTicket
) -> extensions.Ticket:
    """Reads of these topics straight from the data nodes, for as long as the ticket lasts.

    Makes the SBP streams that do not exist yet, so that a reader may wait for their first message.
    """
    topics = [broker.catalogue.topic(stream, topic) for stream, topic in request.topics]
    views = await asyncio.gather(*(_ticket_topic(broker, topic) for topic in topics))
    stream_ids = [partition.sbp_stream for view in views for partition in view.partitions]
    expires_ms = broker.runtime.clock.now_ms() + broker.settings.ticket_ms
    return extensions.Ticket(
        cluster=broker.cluster_uuid,
        ticket=make_ticket(broker.identity.secret, stream_ids, expires_ms),
        expires_ms=expires_ms,
        placement=broker.identity.placement_address,
        nodes=await _addresses_of(broker, stream_ids),
        topics=tuple(views),
    )


async def _addresses_of(broker: Broker, stream_ids: list[int]) -> tuple[str, ...]:
    """Where the streams' data is, replicas included; a hint, so an unknown place is no error."""
    with suppress(StateError):
        found = await broker.client.list_ranges_of(stream_ids)
        return tuple(
            sorted(
                {
                    address
                    for ranges in found.values()
                    for range_ in ranges
                    for address in replica_addresses(range_)
                }
            )
        )
    return ()


async def _ticket_topic(broker: Broker, topic: Topic) -> extensions.TicketTopic:
    partitions = list(topic.partitions)
    logs = await asyncio.gather(
        *(broker.open_partition(topic, partition) for partition in partitions)
    )
    stream = broker.catalogue.stream_by_uid(topic.stream_uid)
    return extensions.TicketTopic(
        stream="" if stream is None else stream.name,
        topic=topic.name,
        stream_id=0 if stream is None else stream.id,
        topic_id=topic.id,
        uid=topic.uid,
        partitions=tuple(
            extensions.TicketPartition(
                partition=partition.id,
                generation=partition.generation,
                sbp_stream=log.stream_id,
                start=log.start_offset,
                next=log.committed,
            )
            for partition, log in zip(partitions, logs, strict=True)
        ),
    )
