"""Placement managers over a real etcd."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from headrace.config.placement import EtcdSettings, PlacementSettings
from headrace.config.process import TlsSettings
from headrace.errors import ConfigError, HeadraceError, NotLeaderError, UnavailableError
from headrace.net.sbp_channel import Channel
from headrace.net.sbp_server import Payload, Peer, Reply
from headrace.placement.metadata.election import (
    Coordinator,
    CreatedAt,
    RefusedError,
    Transaction,
    ValueIs,
)
from headrace.placement.metadata.etcd import EtcdCoordinator, EtcdMetadata
from headrace.placement.metadata.records import OPERATIONS_MAX, Put, StreamRecord
from headrace.placement.service import PlacementService
from headrace.process.certificates import load_certificate
from headrace.runtime.interfaces import Runtime
from headrace.runtime.system import system_runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.messages import Message
from headrace.wire.sbp.opcodes import Code
from tests.etcd import EtcdCluster, ask, running_etcd
from tests.simulator.shared_metadata import MemoryCoordinator, MemoryMetadata
from tests.unit.placement.world import FakeNode

TTL_MS = 2_000  # what etcd takes at least
POLL_MS = 100


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One for all tests that leave it as it is; each uses a prefix of its own."""
    with running_etcd(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture
def own_etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    """For tests that stop it."""
    with running_etcd(tmp_path) as cluster:
        yield cluster


def settings_of(endpoints: tuple[str, ...], prefix: str, **more: Any) -> PlacementSettings:
    return PlacementSettings(
        tick_interval_ms=100,
        settle_ms=500,
        leader_ttl_ms=TTL_MS,
        leader_margin_ms=500,
        election_poll_ms=POLL_MS,
        etcd=EtcdSettings(endpoints=endpoints, prefix=prefix, **{"timeout_ms": 1000, **more}),
    )


# The same promises, in memory and in etcd


@pytest_asyncio.fixture(params=["memory", "etcd"])
async def coordinator(
    request: pytest.FixtureRequest, etcd: EtcdCluster
) -> AsyncIterator[Coordinator]:
    if request.param == "memory":
        clock = system_runtime().clock
        yield MemoryCoordinator(MemoryMetadata(clock), clock, "x")
        return
    prefix = f"/{request.node.name}/"
    real = EtcdCoordinator(
        EtcdSettings(endpoints=etcd.endpoints, prefix=prefix, page_keys=3, timeout_ms=20_000)
    )
    yield real
    await real.close()


async def test_transactions_happen_whole_or_not_at_all(coordinator: Coordinator) -> None:
    first = await coordinator.write(Transaction([CreatedAt("a", 0)], {"a": b"1", "b": b"\x00\xff"}))
    assert first.succeeded
    refused = await coordinator.write(Transaction([CreatedAt("a", 0)], {"a": b"2", "c": b""}))
    assert not refused.succeeded
    entry = await coordinator.read("a")
    assert entry is not None
    assert (entry.key, entry.value, entry.create_revision) == ("a", b"1", first.revision)
    assert await coordinator.read("c") is None
    changed = await coordinator.write(
        Transaction(
            [ValueIs("a", b"1"), CreatedAt("b", first.revision), CreatedAt("c", 0)],
            {"a": b"2", "c": b""},
            ["b"],
        )
    )
    assert changed.succeeded
    assert changed.revision > first.revision
    entry = await coordinator.read("a")
    assert entry is not None
    assert entry.create_revision == first.revision, "changed, not made again"
    assert await coordinator.read("b") is None
    empty = await coordinator.read("c")
    assert empty is not None
    assert empty.value == b""
    for wrong in (ValueIs("a", b"1"), ValueIs("none", b""), CreatedAt("a", changed.revision)):
        assert not (await coordinator.write(Transaction([wrong], {"a": b"3"}))).succeeded


async def test_a_key_that_was_made_again_has_another_create_revision(
    coordinator: Coordinator,
) -> None:
    first = await coordinator.write(Transaction([], {"k": b"v"}))
    await coordinator.write(Transaction([], {}, ["k"]))
    second = await coordinator.write(Transaction([], {"k": b"v"}))
    assert second.revision > first.revision
    assert not (
        await coordinator.write(Transaction([CreatedAt("k", first.revision)], {"x": b""}))
    ).succeeded
    assert (
        await coordinator.write(Transaction([CreatedAt("k", second.revision)], {"x": b""}))
    ).succeeded


async def test_a_scan_is_ordered_complete_and_bounded_by_its_prefix(
    coordinator: Coordinator,
) -> None:
    keys = [f"r/{number:03d}" for number in range(10)]
    await coordinator.write(Transaction([], {key: key.encode() for key in reversed(keys)}))
    await coordinator.write(Transaction([], {"q": b"", "s": b"", "r": b"", "r0": b""}))
    found = await coordinator.scan("r/")
    assert [entry.key for entry in found] == keys
    assert [entry.value for entry in found] == [key.encode() for key in keys]
    assert await coordinator.scan("none/") == []


async def test_what_was_put_with_a_lease_goes_with_it(coordinator: Coordinator) -> None:
    clock = system_runtime().clock
    lease, ttl = await coordinator.grant(5.0)
    other, _ = await coordinator.grant(5.0)
    assert ttl >= 5.0
    await coordinator.write(Transaction([], {"held": b"1"}, lease=lease))
    await coordinator.write(Transaction([], {"other": b"2"}, lease=other))
    await coordinator.write(Transaction([], {"stays": b"3"}))
    await coordinator.revoke(other)
    assert [e.key for e in await coordinator.scan("")] == ["held", "stays"]
    assert await coordinator.keep_alive(other) == 0
    asked = clock.monotonic()
    assert await coordinator.keep_alive(lease) == ttl
    while await coordinator.read("held") is not None:
        assert clock.monotonic() < asked + ttl + 30
        await clock.sleep(0.05)
    assert clock.monotonic() >= asked + ttl - 0.1, "never before its time"
    assert await coordinator.keep_alive(lease) == 0
    with pytest.raises(UnavailableError):
        await coordinator.write(Transaction([], {"late": b""}, lease=lease))
    assert await coordinator.read("late") is None


async def test_the_largest_transaction_is_taken(coordinator: Coordinator) -> None:
    puts = {f"k{number}": bytes(200) for number in range(OPERATIONS_MAX + 1)}  # and the head
    assert (await coordinator.write(Transaction([CreatedAt("k0", 0)], puts))).succeeded
    assert len(await coordinator.scan("k")) == OPERATIONS_MAX + 1


# Calls


async def test_a_server_that_is_not_there_costs_one_more_attempt(etcd: EtcdCluster) -> None:
    endpoints = ("http://127.0.0.1:1", *etcd.endpoints)
    settings = EtcdSettings(endpoints=endpoints, prefix="/failover/", timeout_ms=20_000)
    coordinator = EtcdCoordinator(settings)
    assert (await coordinator.write(Transaction([], {"a": b"1"}))).succeeded
    assert await coordinator.read("a") is not None
    await coordinator.close()


async def test_nobody_there(etcd: EtcdCluster) -> None:
    coordinator = EtcdCoordinator(EtcdSettings(endpoints=("http://127.0.0.1:1",)))
    with pytest.raises(UnavailableError):
        await coordinator.read("a")
    await coordinator.close()
    with pytest.raises(ConfigError):
        EtcdCoordinator(EtcdSettings())
    with pytest.raises(ConfigError):
        EtcdCoordinator(EtcdSettings(endpoints=("https://h:1",), ca="/nowhere"))


async def test_what_etcd_refuses_is_told_apart(etcd: EtcdCluster) -> None:
    settings = EtcdSettings(endpoints=etcd.endpoints, prefix="/refused/", timeout_ms=20_000)
    coordinator = EtcdCoordinator(settings)
    puts = {f"k{number}": b"" for number in range(200)}
    with pytest.raises(RefusedError, match="too many operations"):
        await coordinator.write(Transaction([], puts))
    assert await coordinator.scan("") == []
    await coordinator.close()


async def test_a_compacted_revision_is_taken_again(etcd: EtcdCluster) -> None:
    settings = EtcdSettings(
        endpoints=etcd.endpoints, prefix="/compact/", page_keys=2, timeout_ms=20_000
    )
    coordinator = EtcdCoordinator(settings)
    await coordinator.write(Transaction([], {f"k{n}": b"" for n in range(6)}))
    post = coordinator._post
    compacted = 0

    async def compact_in_between(*args: Any) -> dict[str, Any]:
        nonlocal compacted
        answer = await post(*args)
        if args[1] == "kv/range" and not compacted:
            compacted += 1
            written = await coordinator.write(Transaction([], {"k9": b"new"}))
            await post(args[0], "kv/compaction", {"revision": str(written.revision)}, "")
        return answer

    coordinator._post = compact_in_between  # type: ignore[method-assign,assignment]  # a spy
    assert [e.key for e in await coordinator.scan("k")] == [*(f"k{n}" for n in range(6)), "k9"]
    assert compacted == 1
    await coordinator.close()


# Placement managers


class NodeChannel:
    def __init__(self, node: FakeNode) -> None:
        self._node = node

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        return Reply(self._node.serve(code, message))

    async def close(self) -> None:
        pass


class Managers:
    """Some placement managers of one cluster, and a data node's model."""

    def __init__(self, runtime: Runtime, settings: PlacementSettings, password: str = "") -> None:
        self.runtime = runtime
        self.settings = settings
        self.password = password
        self.services: dict[str, PlacementService] = {}
        self.metadata: dict[str, EtcdMetadata] = {}
        self.node = FakeNode(0, "store", "dn:1")

    async def start(self, name: str) -> None:
        metadata = EtcdMetadata.open(self.runtime, self.settings, name=name, password=self.password)
        service = PlacementService(
            self.runtime,
            self.settings,
            store=metadata.store,
            node=self._connect,
            secret=None,
            election=metadata.election,
            advertise=f"{name}:1",
            name=name,
        )
        await service.start()
        self.services[name], self.metadata[name] = service, metadata

    def _connect(self, address: str) -> Callable[[], Awaitable[Channel]]:
        async def make() -> Channel:
            return NodeChannel(self.node)

        return make

    async def kill(self, name: str) -> None:
        """Without giving anything up, as a crash would."""
        service = self.services.pop(name)
        await service._electing.close()
        await service._background.close()
        await service._calls.close()
        await self.metadata.pop(name).close()

    async def stop(self, name: str) -> None:
        await self.services.pop(name).close()
        await self.metadata.pop(name).close()

    async def close(self) -> None:
        for name in list(self.services):
            await self.stop(name)

    def leaders(self) -> list[str]:
        return [name for name, service in self.services.items() if service.leading]

    async def leader(self, *, but: str = "", seconds: float = 60) -> str:
        deadline = self.runtime.clock.monotonic() + seconds
        while not (set(self.leaders()) - {but}):
            assert len(self.leaders()) <= 1, "two leaders"
            assert self.runtime.clock.monotonic() < deadline, "nobody leads"
            await self.runtime.clock.sleep(0.01)
        (name,) = self.leaders()
        return name

    async def ask(self, code: Code, message: Message) -> Any:
        """As a client: whoever leads; asked again while nobody knows."""
        deadline = self.runtime.clock.monotonic() + 60
        while True:
            name = await self.leader()
            try:
                channel = await self.services[name].connect()
                reply = await channel.call(code, message, timeout=10)
                raise_for_status(getattr(reply.message, "status", None))
                return reply.message
            except NotLeaderError:
                assert self.runtime.clock.monotonic() < deadline
                await self.runtime.clock.sleep(0.05)

    async def register(self) -> None:
        answer = await self.ask(Code.ALLOCATE_ID, m.IdAllocationRequest())
        self.node.node_id = answer.id
        await self.beat()

    async def beat(self) -> None:
        data_node = m.DataNode(self.node.node_id, self.node.address)
        request = m.HeartbeatRequest(
            self.node.store_id, m.ClientRole.DATA_NODE, data_node, host_id="host-1"
        )
        for service in list(self.services.values()):
            await service.routes.table[Code.HEARTBEAT].handler(request, (), Peer())

    async def create(self, name: str = "") -> int:
        wanted = m.Stream(replica_nums=1, name=name)
        answer = await self.ask(Code.CREATE_STREAMS, m.CreateStreamsRequest(streams=(wanted,)))
        (result,) = answer.create_responses
        raise_for_status(result.status)
        stream_id: int = result.stream.stream_id
        return stream_id


async def start_managers(
    etcd: EtcdCluster, prefix: str, count: int = 3, password: str = "", **more: Any
) -> Managers:
    managers = Managers(system_runtime(), settings_of(etcd.endpoints, prefix, **more), password)
    for number in range(1, count + 1):
        await managers.start(f"pm{number}")
    await managers.register()
    return managers


async def test_failovers_keep_streams_ids_and_leases(etcd: EtcdCluster) -> None:
    managers = await start_managers(etcd, "/failovers/")
    ids = [await managers.create("a")]
    lease = m.LeaseRequest(
        action=m.LeaseAction.ACQUIRE, name="broker", holder="x", duration_ms=60_000
    )
    granted = await managers.ask(Code.LEASE, lease)
    assert granted.granted
    clock = managers.runtime.clock
    first = await managers.leader()
    died = clock.monotonic()
    await managers.kill(first)
    await managers.leader(but=first)
    assert clock.monotonic() - died < TTL_MS / 1000 + 20, "the lease, etcd's own look, ours"
    await managers.beat()
    ids.append(await managers.create("b"))
    assert await managers.create("a") == ids[0]
    refused = await managers.ask(Code.LEASE, m.LeaseRequest(
        action=m.LeaseAction.ACQUIRE, name="broker", holder="y", duration_ms=1000,
    ))  # fmt: skip
    assert not refused.granted
    assert refused.epoch == granted.epoch
    second = await managers.leader()
    await managers.stop(second)
    await managers.leader(but=second)
    await managers.beat()
    ids.append(await managers.create("c"))
    assert len(set(ids)) == 3
    assert ids == sorted(ids)
    await managers.close()


async def test_many_leases_and_hosts_survive_a_failover(etcd: EtcdCluster) -> None:
    managers = await start_managers(etcd, "/shards/")
    names = [f"broker/shard/{number}" for number in range(64)]

    def wanted(holder: str, epoch: int = -1) -> m.LeaseRequest:
        return m.LeaseRequest(
            action=m.LeaseAction.CHANGE_MANY, holder=holder, duration_ms=60_000,
            leases=tuple(m.LeaseChange(name, m.LeaseAction.ACQUIRE, epoch) for name in names),
        )  # fmt: skip

    listing = m.LeaseRequest(action=m.LeaseAction.LIST, name="broker/shard/")
    granted = await managers.ask(Code.LEASE, wanted("x"))
    assert all(one.granted and one.epoch == 1 for one in granted.leases)
    known = await managers.ask(Code.LEASE, listing)
    assert {one.holder for one in known.leases} == {"x"}
    first = await managers.leader()
    await managers.kill(first)
    await managers.leader(but=first)
    await managers.beat()
    news = dataclasses.replace(listing, version=known.version, wait_ms=10_000)
    found = await managers.ask(Code.LEASE, news)
    assert found.version != known.version, "another leader's: told in full"
    assert sorted(one.name for one in found.leases) == sorted(names)
    assert {one.holder for one in found.leases} == {"x"}
    assert all(one.granted for one in (await managers.ask(Code.LEASE, wanted("x", 1))).leases)
    assert not any(one.granted for one in (await managers.ask(Code.LEASE, wanted("y"))).leases)
    dead = m.LeaseRequest(action=m.LeaseAction.RELEASE_HOLDER, holder="x", name="broker/")
    assert len((await managers.ask(Code.LEASE, dead)).leases) == 64
    assert not any(one.granted for one in (await managers.ask(Code.LEASE, wanted("x", 1))).leases)
    taken = await managers.ask(Code.LEASE, wanted("y"))
    assert all(one.granted and one.epoch == 2 for one in taken.leases)
    described = await managers.ask(Code.DESCRIBE_CLUSTER, m.DescribeClusterRequest())
    assert [node.host_id for node in described.nodes] == ["host-1"]
    await managers.close()


async def test_a_leader_that_closes_hands_over(etcd: EtcdCluster) -> None:
    """Long before its lease would be over."""
    settings = msgspec.structs.replace(
        settings_of(etcd.endpoints, "/hand-over/"), leader_ttl_ms=60_000
    )
    managers = Managers(system_runtime(), settings)
    for name in ("pm1", "pm2"):
        await managers.start(name)
    first = await managers.leader()
    await managers.stop(first)
    await managers.leader(but=first)
    await managers.close()


async def test_a_follower_redirects(etcd: EtcdCluster) -> None:
    managers = await start_managers(etcd, "/redirect/")
    first = await managers.leader()
    await managers.runtime.clock.sleep(3 * POLL_MS / 1000)
    follower = next(s for n, s in managers.services.items() if n != first)
    channel = await follower.connect()
    with pytest.raises(NotLeaderError) as caught:
        await channel.call(Code.LIST_RANGES, m.ListRangesRequest())
    assert caught.value.data["leader"] == f"{first}:1"
    await managers.close()


async def test_etcd_stands_still_for_a_while(own_etcd: EtcdCluster) -> None:
    """F22: without metadata nobody leads, before the lease can be over; then it goes on."""
    managers = await start_managers(own_etcd, "/pause/", count=2)
    stream_id = await managers.create("a")
    clock = managers.runtime.clock
    (member,) = own_etcd.members
    first = await managers.leader()
    member.pause()
    paused = clock.monotonic()
    election, until = managers.metadata[first].election, paused
    while managers.leaders():
        until = max(until, election._valid_until)
        await clock.sleep(0.02)
    margin_ms = managers.settings.leader_margin_ms
    assert until <= paused + (TTL_MS - margin_ms) / 1000, "it stops before others could begin"
    for service in managers.services.values():
        channel = await service.connect()
        with pytest.raises(NotLeaderError):
            await channel.call(Code.LIST_RANGES, m.ListRangesRequest())
    await clock.sleep(1.0)
    member.resume()
    await managers.leader()
    await managers.beat()
    assert await managers.create("a") == stream_id
    assert await managers.create("b") > stream_id
    await managers.close()


async def test_etcd_is_killed_and_comes_back(own_etcd: EtcdCluster) -> None:
    managers = await start_managers(own_etcd, "/killed/", count=2)
    made = {name: await managers.create(name) for name in "abc"}
    (member,) = own_etcd.members
    member.kill()
    member.start()
    own_etcd.wait_ready()
    await managers.leader()
    await managers.beat()
    assert {name: await managers.create(name) for name in "abc"} == made
    await managers.close()


async def test_one_of_three_etcd_servers_dies(tmp_path: Path) -> None:
    with running_etcd(tmp_path, members=3) as cluster:
        managers = await start_managers(cluster, "/three/", count=2)
        made = {name: await managers.create(name) for name in "ab"}
        for member in cluster.members[:1]:
            member.kill()
        await managers.beat()
        made["c"] = await managers.create("c")
        assert {name: await managers.create(name) for name in "abc"} == made
        await managers.close()


async def test_i12_a_leader_that_stood_still_writes_nothing_afterwards(etcd: EtcdCluster) -> None:
    """All its own checks are switched off: the transaction itself is refused."""
    managers = await start_managers(etcd, "/fenced/", count=2)
    first = await managers.leader()
    metadata = managers.metadata[first]
    election, store = metadata.election, metadata.store
    chain, term = store._chain, election.term
    assert chain is not None
    (second,) = set(managers.services) - {first}
    await election._coordinator.revoke(election._lease)  # as if it had run out meanwhile
    await managers.services[first]._electing.close()  # it does not stand again
    while managers.leaders() != [second]:
        await managers.runtime.clock.sleep(0.01)
    await managers.beat()
    await managers.create("by the second")
    transaction = store._transaction(chain, b"x", [Put(StreamRecord(stream_id=999))])
    assert CreatedAt("election/leader", term) in transaction.conditions
    assert not (await metadata.coordinator.write(transaction)).succeeded
    records = await managers.metadata[second].coordinator.scan("records/")
    assert not any("999" in entry.key for entry in records)
    await managers.close()


class LossyProxy:
    """Between a placement manager and etcd: forwards, and loses answers when told to."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.lose = False
        self.lost = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._port)

        async def back() -> None:
            while data := await to_reader.read(65536):
                if self.lose:
                    self.lost += 1
                    break
                writer.write(data)
            writer.close()

        task = asyncio.create_task(back())
        try:
            while data := await reader.read(65536):
                to_writer.write(data)
        except ConnectionError:
            pass
        finally:
            to_writer.close()
            await asyncio.gather(task, return_exceptions=True)
            writer.close()
            await asyncio.gather(
                to_writer.wait_closed(), writer.wait_closed(), return_exceptions=True
            )

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.wait(self._serving, timeout=5)
        await self._server.wait_closed()


async def test_answers_of_etcd_get_lost(etcd: EtcdCluster) -> None:
    """Each transaction takes effect once, whatever the placement manager heard of it."""
    proxy = LossyProxy(httpx.URL(etcd.endpoints[0]).port or 0)
    endpoint = await proxy.start()
    managers = Managers(system_runtime(), settings_of((endpoint,), "/lossy/"))
    await managers.start("pm1")
    await managers.register()
    clock = managers.runtime.clock
    made: dict[str, int] = {}
    for number in range(10):
        proxy.lose = True
        before = proxy.lost
        creating = asyncio.create_task(managers.create(f"s{number}"))
        while proxy.lost == before:
            await clock.sleep(0.001)
        proxy.lose = False
        await managers.beat()
        made[f"s{number}"] = await creating
    assert len(set(made.values())) == 10
    service = managers.services["pm1"]
    assert {s.name: s.stream_id for s in service.state.streams()} == made
    loaded = await managers.metadata["pm1"].store.load()
    found = {r.name: r.stream_id for r in loaded if isinstance(r, StreamRecord)}
    assert found == made, "what is in memory is what is in etcd"
    await managers.close()
    await proxy.close()


async def test_users_and_passwords(own_etcd: EtcdCluster) -> None:
    endpoint = own_etcd.endpoints[0]
    ask(endpoint, "auth/user/add", {"name": "root", "password": "secret"})
    ask(endpoint, "auth/role/add", {"name": "root"})
    ask(endpoint, "auth/user/grant", {"user": "root", "role": "root"})
    ask(endpoint, "auth/enable", {})
    stranger = EtcdCoordinator(EtcdSettings(endpoints=(endpoint,)))
    with pytest.raises(HeadraceError):
        await stranger.read("a")
    await stranger.close()
    managers = await start_managers(
        own_etcd, "/users/", count=1, password="secret", username="root"
    )
    stream_id = await managers.create("a")
    (member,) = own_etcd.members
    member.kill()  # tokens do not survive it
    member.start()
    own_etcd.wait_ready()
    await managers.leader()
    await managers.beat()
    assert await managers.create("a") == stream_id
    await managers.close()


async def test_tls(tmp_path: Path) -> None:
    runtime = system_runtime()
    load_certificate(runtime.disk, runtime.clock, TlsSettings(), str(tmp_path))
    load_certificate(runtime.disk, runtime.clock, TlsSettings(), str(tmp_path / "other"))
    tls = tmp_path / "secrets" / "tls"
    options = (f"--cert-file={tls / 'certificate.pem'}", f"--key-file={tls / 'key.pem'}")
    with running_etcd(tmp_path, options=options, scheme="https") as cluster:
        trusting = EtcdSettings(
            endpoints=cluster.endpoints, ca=str(tls / "ca.pem"), timeout_ms=20_000
        )
        coordinator = EtcdCoordinator(trusting)
        assert (await coordinator.write(Transaction([], {"a": b"1"}))).succeeded
        await coordinator.close()
        another = tmp_path / "other" / "secrets" / "tls" / "ca.pem"
        wary = EtcdCoordinator(EtcdSettings(endpoints=cluster.endpoints, ca=str(another)))
        with pytest.raises(UnavailableError):
            await wary.read("a")
        await wary.close()


async def test_a_missing_etcd_fails_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(pytest.fail.Exception, match="apt-get install"),
        running_etcd(Path("/nowhere")),
    ):
        pass
