"""Several placement managers over one store: who leads, what a deposed one can still do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from headrace.errors import NotEnoughNodesError, NotLeaderError, UnavailableError
from headrace.placement.metadata.election import LEADER_KEY, CreatedAt, Transaction, ValueIs
from headrace.placement.metadata.guarded_store import HEAD_KEY, RECORDS
from headrace.placement.metadata.records import (
    CounterRecord,
    Put,
    RangeRecord,
    Record,
    StreamRecord,
)
from headrace.placement.metadata.store import MemoryStore
from headrace.placement.nodes import Nodes
from headrace.placement.state import PlacementState
from headrace.placement.term import Term
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.opcodes import Code
from tests.simulator.runtime import Simulation
from tests.unit.placement.world import SETTINGS, World, simulate

TTL = SETTINGS.leader_ttl_ms / 1000


def test_a_follower_names_the_leader_and_everybody() -> None:
    """F21: within one redirect."""

    async def body(world: World) -> None:
        leader = await world.leader()
        (first,) = world.leaders()
        follower = next(s for n, s in world.services.items() if n != first)
        await world.clock.sleep(1)
        with pytest.raises(NotLeaderError) as caught:
            await world.call(follower, Code.LIST_RANGES, m.ListRangesRequest())
        assert caught.value.data["leader"] == f"{first}:1"
        managers = caught.value.data["managers"]
        assert isinstance(managers, tuple)
        assert {(n.name, n.advertise_addr, bool(n.is_leader)) for n in managers} == {
            (name, f"{name}:1", name == first) for name in world.names
        }
        await world.call(leader, Code.LIST_RANGES, m.ListRangesRequest())

    simulate(body, managers=3)


@pytest.mark.parametrize("code", sorted(set(Code) - {Code.PING, Code.GOAWAY}))
def test_a_follower_answers_nothing_but_heartbeats_and_metrics(code: Code) -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        follower = next(s for n, s in world.services.items() if n != first)
        route = follower.routes.table.get(code)
        if route is None:
            return  # a data node's
        assert route.opcode.request is not None
        channel = await follower.connect()
        if code is Code.HEARTBEAT:
            node = m.DataNode(7, "dn7:1")
            beat = m.HeartbeatRequest("store", m.ClientRole.DATA_NODE, node)
            await channel.call(code, beat)
            await channel.call(Code.REPORT_METRICS, m.ReportMetricsRequest(data_node=node))
        elif code is not Code.REPORT_METRICS:
            with pytest.raises(NotLeaderError):
                await channel.call(code, route.opcode.request())

    simulate(body, managers=2)


def test_the_leader_dies_and_another_goes_on_with_what_it_wrote() -> None:
    async def body(world: World) -> None:
        stream = await world.create("s", 1)
        assert stream.stream is not None
        (first,) = world.leaders()
        died = world.clock.monotonic()
        world.crash(first)
        await world.leader()
        took = world.clock.monotonic() - died
        assert took < TTL + 1, "the lease, and the next look"
        (found,) = await world.list(stream.stream.stream_id)
        assert found.range_index == 0
        again = await world.create("s", 1)
        assert again.stream is not None
        assert again.stream.stream_id == stream.stream.stream_id

    simulate(body, managers=3, nodes=1)


def test_a_leader_that_closes_hands_over_at_once() -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        closed = world.clock.monotonic()
        await world.stop(first)
        await world.leader()
        assert world.clock.monotonic() - closed < 2 * SETTINGS.election_poll_ms / 1000

    simulate(body, managers=3)


def test_a_leader_cut_off_stops_before_another_begins() -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        old = world.services[first]
        world.metadata.unreachable.add(first)
        cut = world.clock.monotonic()
        await world.until(lambda: not old.leading)
        stopped = world.clock.monotonic()
        with pytest.raises(NotLeaderError):
            await world.call(old, Code.LIST_RANGES, m.ListRangesRequest())
        assert world.leaders() == []
        await world.leader(but=first)  # asserts that never two lead
        assert cut < stopped < world.clock.monotonic()
        world.metadata.unreachable.clear()
        await world.clock.sleep(5)
        assert not old.leading
        assert len(world.leaders()) == 1

    simulate(body, managers=3)


def test_without_its_metadata_nobody_leads_and_it_comes_back() -> None:
    """F22: metadata operations fail; what follows is found again."""

    async def body(world: World) -> None:
        await world.create("s")
        world.metadata.unreachable.update(world.names)
        await world.until(lambda: not world.leaders())
        for service in world.services.values():
            with pytest.raises(NotLeaderError):
                await world.call(service, Code.DESCRIBE_STREAMS, m.DescribeStreamsRequest())
        await world.clock.sleep(10)
        world.metadata.unreachable.clear()
        await world.leader()
        assert (await world.create("s")).stream is not None

    simulate(body, managers=3, nodes=1)


def test_i12_a_write_of_a_deposed_leader_never_takes_effect() -> None:
    """Its process stood still in the middle of a change, and its lease ran out meanwhile."""

    async def body(world: World) -> None:
        (first,) = world.leaders()
        old = world.services[first]
        changes = old.changes
        world.metadata.unreachable.add(first)
        before = len(world.metadata.history)
        await world.leader(but=first)
        world.metadata.unreachable.clear()
        record = StreamRecord(stream_id=99, name="from the past")
        with pytest.raises(NotLeaderError):
            await changes.term.commit([Put(record)])
        # Even if the process does not know yet, the store does: straight past every local check.
        store = old._store
        with pytest.raises(NotLeaderError):
            await store.commit([Put(record)])
        assert all(w.author != first for w in world.metadata.history[before:] if _records(w))
        assert record not in world.metadata.records()

    simulate(body, managers=3)


def test_i12_the_guard_alone_keeps_an_old_term_out() -> None:
    """As above, with every check in the process switched off: the transaction itself is refused."""

    async def body(world: World) -> None:
        (first,) = world.leaders()
        old = world.services[first]
        election, store = old._election, old._store
        chain, term, until = store._chain, election.term, election._valid_until  # type: ignore[attr-defined,union-attr]
        world.metadata.unreachable.add(first)
        await world.leader(but=first)
        world.metadata.unreachable.clear()
        candidate = old._election._candidate  # type: ignore[union-attr]
        store._chain = chain  # type: ignore[attr-defined]
        election.term, election._valid_until = term, until + 1000  # type: ignore[union-attr]
        assert candidate == old._election.candidate  # type: ignore[union-attr]
        record = StreamRecord(stream_id=99)
        with pytest.raises(NotLeaderError):
            await store.commit([Put(record)])
        assert record not in world.metadata.records()

    simulate(body, managers=3)


def _records(written: object) -> bool:
    return any(key.startswith(RECORDS) for key in written.transaction.puts)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_that_was_lost_is_found_out(seed: int) -> None:
    """Reachability flickers: transactions happen once, and what was answered is there."""

    async def body(world: World) -> None:
        made: dict[str, int] = {}
        random = world.simulation.runtime("faults").random
        for number in range(12):
            (first,) = world.leaders() or [""]
            if first and random.below(2):
                world.metadata.unreachable.add(first)
            creating = world.simulation.start("client", world.create(f"s{number}", 1))
            await world.clock.sleep(random.uniform() * 0.01)
            world.metadata.unreachable.clear()
            if random.below(4) == 0 and first:
                await world.clock.sleep(random.uniform() * 0.005)
                world.metadata.unreachable.add(first)
                await world.clock.sleep(random.uniform() * 4)
                world.metadata.unreachable.clear()
            result = await creating
            assert result.stream is not None
            made[f"s{number}"] = result.stream.stream_id
        records = [r for r in world.metadata.records() if isinstance(r, StreamRecord)]
        assert {r.name: r.stream_id for r in records} == made
        assert len(set(made.values())) == len(made)
        leader = await world.leader()
        assert {s.name: s.stream_id for s in leader.state.streams()} == made, "memory is the store"

    simulate(body, managers=2, nodes=1, seed=seed)


def test_f26_ids_are_unique_across_three_failovers() -> None:
    async def body(world: World) -> None:
        ids: list[int] = []
        nodes: list[int] = []
        for _ in range(4):
            leader = await world.leader()
            for _ in range(3):
                result = await world.create()
                assert result.stream is not None
                ids.append(result.stream.stream_id)
                answer = await world.call(leader, Code.ALLOCATE_ID, m.IdAllocationRequest())
                nodes.append(answer.id)
            (name,) = world.leaders()
            if len(world.services) > 1:
                world.crash(name)
        assert ids == sorted(set(ids)), "never used again"
        assert nodes == sorted(set(nodes))

    simulate(body, managers=4, nodes=1)


def test_a_new_leader_knows_who_lives_from_heartbeats_to_followers() -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        world.crash(first)
        leader = await world.leader()
        assert leader.state.nodes.alive() == [0, 1]
        await world.create("at once", 2)

    simulate(body, managers=3, nodes=2)


def test_a_node_under_a_false_name_is_not_taken_for_alive() -> None:
    """A follower cannot check a heartbeat; what it remembers is checked when it leads."""

    async def body(world: World) -> None:
        impostor = world.nodes[0]
        impostor.store_id = "another store"
        (first,) = world.leaders()
        await world.beat()
        world.crash(first)
        leader = await world.leader()
        assert leader.state.nodes.alive() == []

    simulate(body, managers=2, nodes=1)


def test_creates_after_a_take_over_wait_for_heartbeats() -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        node = world.nodes[0]
        world.cut = {(name, 0) for name in world.names if name != first}
        await world.clock.sleep(5)
        world.crash(first)
        leader = await world.leader()
        assert leader.state.nodes.alive() == []
        started = world.clock.monotonic()
        creating = world.simulation.start("client", world.create("s"))
        await world.clock.sleep(0.5)
        world.cut.clear()
        assert (await creating).stream is not None
        assert world.clock.monotonic() - started < 1.5
        node.reachable = False
        await world.clock.sleep(5)
        with pytest.raises(NotEnoughNodesError):
            await world.create("t")  # settled: there is nobody

    simulate(body, managers=2, nodes=1)


def test_a_lease_survives_the_placement_manager_without_two_holders() -> None:
    """The old leader renewed it in memory only; the new one gives it its whole time again."""

    async def acquire(world: World, holder: str, epoch: int = -1) -> m.LeaseResponse:
        request = m.LeaseRequest(
            action=m.LeaseAction.ACQUIRE, name="broker", holder=holder, duration_ms=8000,
            epoch=epoch,
        )  # fmt: skip
        answer = await world.ask(Code.LEASE, request)
        assert isinstance(answer, m.LeaseResponse)
        return answer

    async def body(world: World) -> None:
        granted = await acquire(world, "a")
        assert granted.granted
        await world.clock.sleep(7)
        asked = world.clock.monotonic()
        assert (await acquire(world, "a", granted.epoch)).granted  # renewed: not written
        world.crash(world.leaders()[0])
        await world.leader()
        while world.clock.monotonic() < asked + 8:
            assert not (await acquire(world, "b")).granted, "a may still believe in it"
            await world.clock.sleep(0.5)
        await world.clock.sleep(8)
        taken = await acquire(world, "b")
        assert taken.granted
        assert taken.epoch > granted.epoch
        assert not (await acquire(world, "a", granted.epoch)).granted

    simulate(body, managers=2)


def test_leases_are_not_answered_by_a_leader_that_may_be_over() -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        old = world.services[first]
        request = m.LeaseRequest(action=m.LeaseAction.QUERY, name="x")
        await world.call(old, Code.LEASE, request)
        world.metadata.unreachable.add(first)
        await world.until(lambda: not old.leading)
        with pytest.raises(NotLeaderError):
            await world.call(old, Code.LEASE, request)

    simulate(body, managers=2)


def test_a_change_of_an_old_term_ends_with_it() -> None:
    """Deposed and elected again: what the first term decided is not written in the second."""

    async def body(world: World) -> None:
        (only,) = world.leaders()
        service = world.services[only]
        changes = service.changes
        election = service._election
        assert election is not None
        election.depose()
        await world.until(lambda: service.leading and service.changes is not changes)
        with pytest.raises(NotLeaderError):
            await changes.term.commit([Put(CounterRecord(name="stream", bound=5))])
        assert (await world.create()).stream is not None

    simulate(body, managers=1, nodes=1)


def test_a_full_queue_of_changes_goes_in_few_transactions_of_bounded_size() -> None:
    async def body(world: World) -> None:
        leader = await world.leader()
        before = len(world.metadata.history)
        streams = tuple(m.Stream(replica_nums=1) for _ in range(300))
        answer = await world.call(
            leader, Code.CREATE_STREAMS, m.CreateStreamsRequest(streams=streams)
        )
        assert len(answer.create_responses) == 300
        written = [w.transaction for w in world.metadata.history[before:]]
        sizes = [len(t.puts) + len(t.removes) for t in written if "head" in t.puts]
        assert max(sizes) <= 101, "and the head"
        assert len(sizes) < 100
        records = world.metadata.records()
        assert sum(isinstance(r, RangeRecord) for r in records) == 300

    simulate(body, managers=1, nodes=1)


def test_a_manager_alone_is_unreachable_and_says_so() -> None:
    async def body(world: World) -> None:
        world.metadata.unreachable.update(world.names)
        await world.until(lambda: not world.leaders())
        (service,) = world.services.values()
        with pytest.raises(NotLeaderError) as caught:
            await world.call(service, Code.LIST_RANGES, m.ListRangesRequest())
        assert caught.value.data["leader"] == "", "never its own address"
        world.metadata.unreachable.clear()

    simulate(body, managers=1)


def test_the_metadata_itself_keeps_its_promises() -> None:
    async def body(world: World) -> None:
        metadata = world.metadata
        lease, ttl = metadata.grant(2.0)
        assert ttl == 2.0
        await world.clock.sleep(1.9)
        assert metadata.keep_alive(lease) == 2.0
        await world.clock.sleep(2.0)
        assert metadata.keep_alive(lease) == 0.0
        with pytest.raises(UnavailableError):
            metadata.write(Transaction([], {"k": b""}, lease=lease), "x")

    simulate(body, managers=1)


def test_a_lost_answer_costs_neither_the_term_nor_a_second_stream() -> None:
    """It was written, its leader did not hear of it: the same transaction again is refused, and
    the head tells why."""

    async def body(world: World) -> None:
        leader = await world.leader()
        term = leader._election.term  # type: ignore[union-attr]
        write, lost = world.metadata.write, 0

        def lose_answer(transaction: Transaction, author: str) -> object:
            nonlocal lost
            outcome = write(transaction, author)
            if HEAD_KEY in transaction.puts and lost < 3:
                lost += 1
                raise UnavailableError("the answer got lost")
            return outcome

        world.metadata.write = lose_answer  # type: ignore[method-assign,assignment]
        created = await world.create()
        assert created.stream is not None
        assert lost == 3
        assert leader._election.term == term  # type: ignore[union-attr]
        streams = [r for r in world.metadata.records() if isinstance(r, StreamRecord)]
        assert [s.stream_id for s in streams] == [created.stream.stream_id]
        assert leader.state.streams() == streams

    simulate(body, managers=2, nodes=1)


def test_every_write_names_its_leader_and_its_term() -> None:
    async def body(world: World) -> None:
        await world.create()
        for _ in range(2):
            world.crash(world.leaders()[0])
            await world.leader()
            await world.create()
        terms: list[int] = []
        for written in world.metadata.history:
            conditions = written.transaction.conditions
            if not _records(written):
                continue
            (term,) = [
                c.revision for c in conditions if isinstance(c, CreatedAt) and c.key == LEADER_KEY
            ]
            (leader,) = [
                c.value for c in conditions if isinstance(c, ValueIs) and c.key == LEADER_KEY
            ]
            assert written.author.encode() in leader
            terms.append(term)
        assert terms == sorted(terms)
        assert len(set(terms)) == 3

    simulate(body, managers=3, nodes=1)


def test_a_change_that_waited_while_its_lease_ran_out_is_refused() -> None:
    """The election has not noticed yet; the clock has."""
    leads = True
    simulation = Simulation(1)
    state = PlacementState(nodes=Nodes(timeout_ms=1))
    term = Term(simulation.runtime("pm"), state, MemoryStore(), leading=lambda: leads)

    async def body() -> None:
        nonlocal leads
        await term.commit([])
        leads = False
        with pytest.raises(NotLeaderError):
            await term.commit([])  # also a decision that needs no write is an answer
        with pytest.raises(NotLeaderError):
            await term.take_id(state.stream_ids)

    simulation.run(body())


def test_a_take_over_that_fails_is_tried_by_another() -> None:
    """Whatever it fails with: nobody leads without being ready, nobody stands aside for good."""

    async def body(world: World) -> None:
        (first,) = world.leaders()
        failures = 0
        for name, service in world.services.items():
            if name == first:
                continue
            load = service._store.load

            async def fail(load: Callable[[], Awaitable[list[Record]]] = load) -> list[Record]:
                nonlocal failures
                failures += 1
                if failures < 4:
                    raise ValueError("a bug") if failures % 2 else UnavailableError("no answer")
                return await load()

            service._store.load = fail  # type: ignore[method-assign]
        world.crash(first)
        await world.leader()
        assert failures == 4
        await world.create()

    simulate(body, managers=3, nodes=1)


def test_strange_things_under_the_leader_key_are_waited_out() -> None:
    async def body(world: World) -> None:
        (first,) = world.leaders()
        world.crash(first)
        await world.until(lambda: world.metadata.read(LEADER_KEY) is None)
        lease, _ = world.metadata.grant(5.0)
        world.metadata.write(Transaction([], {LEADER_KEY: b"?"}, lease=lease), "somebody")
        await world.clock.sleep(3)
        assert world.leaders() == []
        await world.leader()

    simulate(body, managers=2)


def test_a_late_duplicate_of_a_write_rolls_nothing_back() -> None:
    """The request was on its way twice: its leader still leads, and has gone on since. What keeps
    it out is the head of the chain, which it names and which has moved."""

    async def body(world: World) -> None:
        await world.add_nodes(1)
        created = await world.create("kept", 1)
        assert created.stream is not None
        stream_id = created.stream.stream_id
        for period_ms in (1, 2, 3):
            wanted = m.Stream(stream_id=stream_id, retention_period_ms=period_ms)
            await world.ask(Code.UPDATE_STREAMS, m.UpdateStreamsRequest(streams=(wanted,)))
        writes = [w for w in world.metadata.history if HEAD_KEY in w.transaction.puts]
        assert len(writes) >= 5
        before = world.metadata.records()
        for written in writes:
            again = world.metadata.write(written.transaction, "the network")
            assert not again.succeeded, f"revision {written.revision} takes effect once more"
        assert world.metadata.records() == before

    simulate(body, managers=3)
