"""Bugs planted on purpose, each a mistake that a replicated log can really make.

A mutant is a function that patches the code under test through pytest's monkeypatch, and a plan
whose faults give the mistake a chance. `test_mutants.py` demands that the checker finds each within
a bounded number of seeds; `python -m tests.sim.mutants NAME` shows what it says.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from headrace.datanode import handlers, service
from headrace.datanode.append import requests
from headrace.datanode.append.producers import EarlierRanges, Producers
from headrace.datanode.control.node_files import Fences, Identity
from headrace.datanode.control.ranges import Ranges
from headrace.datanode.replication.commitment import Commitment
from headrace.datanode.service import DataNodeService
from headrace.datanode.state import NodeState
from headrace.placement import sealing
from headrace.placement.metadata.election import LeaseElection, Transaction
from headrace.placement.metadata.guarded_store import GuardedStore
from headrace.placement.metadata.records import NodeRecord, Operation, Operations, Put
from headrace.placement.nodes import Nodes
from headrace.placement.state import PlacementState
from headrace.runtime.interfaces import Disk
from headrace.sbp_client.owned_stream import OwnedStream
from headrace.storage.range.control import RangeControl
from headrace.storage.range.log import RangeLog
from headrace.storage.range.progress import NO_LIMIT, RangeProgress
from headrace.storage.range.writer import RangeWriter
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import AlreadyDurableError
from tests.sim.run import Plan, run
from tests.sim.scene import Scene, play
from tests.sim.test_scenarios_acknowledged import (
    doubtful_tail,
    owner_on_one_disk,
    restarted_primary,
    sender_on_one_disk,
)
from tests.sim.test_scenarios_clients import late_trim
from tests.sim.test_scenarios_managers import late_sync, leader_wakes_up_in_a_write
from tests.sim.test_scenarios_replication import sealed_replica_restarts

Patch = pytest.MonkeyPatch
DEFAULT = Plan()

_CUTS = ("isolate", "isolate", "partition", "crash")
_TORN = ("crash_in_write", "crash_in_write", "crash")
_STUBBORN = ("stubborn", "stubborn", "stubborn")
_PLAIN = ("plain", "stubborn", "producer")
_CRASHES = ("crash", "crash_in_write", "crash_all_nodes", "crash_all_nodes", "partition")


def _plan(*kinds: str, writers: tuple[str, ...] = _PLAIN, **changes: Any) -> Plan:
    """Few clients and the faults that matter: a mutant should not cost more than it must."""
    return replace(Plan(kinds=kinds, writers=writers), **changes)


@dataclass(frozen=True, slots=True)
class Mutant:
    """`finds`: the invariants of which one at least must be reported. A mistake that needs a row of
    coincidences is sought with a script instead of a plan."""

    plant: Callable[[Patch], None]
    finds: tuple[str, ...]
    plan: Plan = DEFAULT
    seeds: int = 12
    script: Callable[[Scene], Awaitable[None]] | None = None
    nodes: int = 4

    def violations(self, seed: int) -> list[str]:
        if self.script is None:
            return run(seed, self.plan).violations
        try:
            play(self.script, seed=seed, nodes=self.nodes)
        except AssertionError as error:
            return str(error).splitlines()
        return []


def seal_takes_the_minimum(patch: Patch) -> None:
    """The end is the smallest of any answers, although not every replica acknowledges (D10)."""

    def minimum(
        ends: Sequence[int], *, replicas: int, quorum: int, acknowledged: int = -1
    ) -> int | None:
        return min(ends) if ends else None

    patch.setattr(sealing, "sealed_end", minimum)


def acknowledge_what_the_seal_takes_in(patch: Patch) -> None:
    """That the next range starts behind a batch is taken for that batch's acknowledgement."""

    async def at_once(self: OwnedStream, start: int, backoff: object) -> None:
        pass

    patch.setattr(OwnedStream, "_wait_held", at_once)


def repeat_is_acknowledged_by_the_seal(patch: Patch) -> None:
    """What a producer sends again and an earlier range has counts as stored, on one disk too."""

    async def at_once(self: EarlierRanges, key: object, start: int, end: int) -> None:
        pass

    patch.setattr(EarlierRanges, "wait_held", at_once)


def doubtful_tail_is_read(patch: Patch) -> None:
    """A replica serves what ends a sealed range before enough others hold it."""

    async def finish(self: RangeLog, end: int, *, writer_epoch: int = -1, **_: int) -> None:
        await original(self, end, writer_epoch=writer_epoch)

    original = RangeLog.finish
    patch.setattr(RangeLog, "finish", finish)


def primary_that_restarted_tells_its_end(patch: Patch) -> None:
    """A primary that does not know what it acknowledged says that it is what its disk holds."""

    def told(self: Ranges, key: Any) -> int:
        log = self._state.find(key)
        return log.committed_offset if log is not None and not self._state.follows(log) else -1

    patch.setattr(Ranges, "acknowledged", told)


def acknowledge_before_sync(patch: Patch) -> None:
    build = RangeWriter._build_write

    def unsynced(self: RangeWriter, *args: Any, **kwargs: Any) -> Any:
        write = build(self, *args, **kwargs)
        write.sync = False
        return write

    patch.setattr(RangeWriter, "_build_write", unsynced)


def acknowledge_without_a_quorum(patch: Patch) -> None:
    """The primary's own copy is taken for enough."""

    def advance(self: Commitment) -> bool:
        grown = self.durable > self.committed
        self.committed = max(self.durable, self.committed)
        return grown

    patch.setattr(Commitment, "_advance", advance)


def replica_serves_uncommitted(patch: Patch) -> None:
    """Whatever is on a node's disk counts as committed there."""
    advance = RangeProgress.advance

    def eager(self: RangeProgress) -> None:
        self.commit_limit = NO_LIMIT
        advance(self)

    patch.setattr(RangeProgress, "advance", eager)


def restart_forgets_the_end(patch: Patch) -> None:
    """After a restart a replica answers a seal as if it held nothing (F6)."""
    recovered: set[int] = set()
    recover, wire = DataNodeService._recover, handlers.wire_range

    async def recover_and_note(self: DataNodeService, store: Any) -> None:
        await recover(self, store)
        recovered.update(id(log) for log in self.logs() if not log.sealed)

    def forgetful(log: RangeLog) -> m.Range:
        told = wire(log)
        if id(log) in recovered and log.sealed and not log.final:
            told = replace(told, end_offset=log.start_offset, next_offset=log.start_offset)
        return told

    patch.setattr(DataNodeService, "_recover", recover_and_note)
    patch.setattr(handlers, "wire_range", forgetful)


def primary_reuses_offsets(patch: Patch) -> None:
    """A primary that restarted goes on in its range, from the end of its own disk (F29)."""
    recover = DataNodeService._recover

    async def recover_and_lead(self: DataNodeService, store: Any) -> None:
        await recover(self, store)
        self.state.interrupted.clear()
        for log in self.logs():
            if log.ack_quorum > 1 and self.state.leads(log):
                self.leading.lead(log, [node for node in log.replicas if node != self.node_id])

    patch.setattr(DataNodeService, "_recover", recover_and_lead)


def replica_compares_no_checksum(patch: Patch) -> None:
    """What is stored at an offset counts as the batch that was sent, whatever it is (1464).

    Alone it is harmless, because no primary sends another batch for an offset: it comes with one
    that does.
    """
    primary_reuses_offsets(patch)

    async def trusting(log: RangeLog, header: Any) -> None:
        raise AlreadyDurableError(offset=header.base_offset)

    patch.setattr(requests, "_compare", trusting)


def node_forgets_its_seal(patch: Patch) -> None:
    """A seal is remembered in memory only: after a restart the range is open again."""
    save = RangeControl._save

    async def unsaved(self: RangeControl, **changes: object) -> None:
        known = self._progress.metadata
        if changes.get("sealed") and not changes.get("decided") and known.ack_quorum > 1:
            self._progress.metadata = msgspec.structs.replace(known, **changes)
        else:
            await save(self, **changes)

    patch.setattr(RangeControl, "_save", unsaved)


def dropped_range_opens_again(patch: Patch) -> None:
    """A data node does not remember which ranges it gave up."""
    patch.setattr(Fences, "forbids", lambda self, stream_id, range_index: False)


def restarted_primary_knows_its_end(patch: Patch) -> None:
    """It takes what it knows to be committed, nothing, for where its range ends."""
    patch.setattr(NodeState, "check_describe", lambda self, view: None)


def final_end_is_not_applied(patch: Patch) -> None:
    """A replica with more than the range's final end keeps and serves all of it."""

    async def finish(self: RangeLog, end: int, *, writer_epoch: int = -1, **_: int) -> None:
        await original(self, max(end, self.durable_offset), writer_epoch=writer_epoch)

    original = RangeLog.finish
    patch.setattr(RangeLog, "finish", finish)


def deposed_leader_writes(patch: Patch) -> None:
    """Transactions do not compare the leader key, nor what was written before them."""
    build = GuardedStore._transaction

    def unguarded(self: GuardedStore, *args: Any) -> Transaction:
        return replace(build(self, *args), conditions=[])

    patch.setattr(GuardedStore, "_transaction", unguarded)
    patch.setattr(LeaseElection, "leading", property(lambda self: self.term > 0))


def empty_disk_answers_seals(patch: Patch) -> None:
    """A node that lost its log keeps its id, and what it does not know it seals as empty (F7)."""

    def load(disk: Disk, folder: str, store_id: str) -> Identity | None:
        try:
            known = msgspec.json.decode(disk.read(f"{folder}/node.json"), type=Identity)
        except Exception:
            return None
        return Identity(known.node_id, store_id)

    def register(
        self: Nodes, node_id: int, address: str, store_id: str, host: str = "", host_id: str = ""
    ) -> list[Operation]:
        record = NodeRecord(node_id=node_id, address=address, store_id=store_id)
        return [] if self.records.get(node_id) == record else [Put(record)]

    patch.setattr(service, "load_identity", load)
    patch.setattr(Nodes, "register", register)


def producers_are_lost_at_seals(patch: Patch) -> None:
    """The next range starts without the table of the one before."""

    def forget(self: Producers, states: object) -> None:
        self._table.clear()

    patch.setattr(Producers, "merge", forget)


def trim_moves_backwards(patch: Patch) -> None:
    trim = PlacementState.trim

    def either_way(
        self: PlacementState, stream_id: int, offset: int, *, next_offset: int = -1
    ) -> Operations:
        first = self.ranges(stream_id)[0]
        if offset < first.start:
            return [Put(msgspec.structs.replace(first, start=offset))]
        return trim(self, stream_id, offset, next_offset=next_offset)

    patch.setattr(PlacementState, "trim", either_way)


def old_epochs_may_append(patch: Patch) -> None:
    check = NodeState.check_append

    def lenient(
        self: NodeState[Any], view: Any, *, writer_epoch: int, expected_offset: int
    ) -> None:
        epoch = view.writer_epoch if writer_epoch >= 0 else writer_epoch
        check(self, view, writer_epoch=epoch, expected_offset=expected_offset)

    patch.setattr(NodeState, "check_append", lenient)
    patch.setattr(RangeControl, "_check_epoch", lambda self, epoch: None)


MUTANTS: dict[str, Mutant] = {
    "seal takes the minimum of any answers": Mutant(
        seal_takes_the_minimum, ("I1", "I3", "I6"), _plan("partition", "pause", "crash")
    ),
    "acknowledge what the seal takes in": Mutant(
        acknowledge_what_the_seal_takes_in, ("I6",), script=owner_on_one_disk
    ),
    "a repeat is acknowledged by the seal": Mutant(
        repeat_is_acknowledged_by_the_seal, ("I6",), script=sender_on_one_disk
    ),
    "a doubtful tail is read": Mutant(
        doubtful_tail_is_read, ("did not fail",), script=doubtful_tail
    ),
    "a primary that restarted tells its end": Mutant(
        primary_that_restarted_tells_its_end, ("did not fail",), script=restarted_primary
    ),
    "acknowledge before sync": Mutant(
        acknowledge_before_sync, ("I1", "I3", "I6"), _plan(*_CRASHES)
    ),
    "acknowledge without a quorum": Mutant(
        acknowledge_without_a_quorum, ("I1", "I3", "I6", "I8"), _plan(*_CUTS)
    ),
    "a replica serves uncommitted data": Mutant(
        replica_serves_uncommitted, ("I1", "I8"), _plan(*_CUTS, readers=4)
    ),
    "restart forgets the committed end": Mutant(
        restart_forgets_the_end, ("I1", "I3", "I6"), _plan(*_CRASHES)
    ),
    "a primary reuses offsets after a restart": Mutant(
        primary_reuses_offsets, ("I1", "I3", "I9"), _plan(*_TORN, writers=_STUBBORN)
    ),
    "1464 without the checksum": Mutant(
        replica_compares_no_checksum, ("I1", "I3", "I9"), _plan(*_TORN, writers=_STUBBORN)
    ),
    "a data node forgets its seal": Mutant(
        node_forgets_its_seal, ("did not fail",), script=sealed_replica_restarts
    ),
    "a dropped range opens again": Mutant(
        dropped_range_opens_again, ("did not fail",), script=late_sync, nodes=7
    ),
    "a restarted primary knows its end": Mutant(
        restarted_primary_knows_its_end, ("I1",), _plan(*_CRASHES, readers=4)
    ),
    "the final end is not applied": Mutant(
        final_end_is_not_applied, ("I1", "I3", "I8", "I9"), _plan(*_CUTS, writers=_STUBBORN)
    ),
    "a deposed leader writes": Mutant(
        deposed_leader_writes, ("I12",), script=leader_wakes_up_in_a_write
    ),
    "an empty disk answers seals": Mutant(
        empty_disk_answers_seals, ("I1", "I3", "I6"), _plan("wipe", "wipe", "crash", faults=8)
    ),
    "producers are lost at seals": Mutant(
        producers_are_lost_at_seals, ("I18",), _plan(*_CRASHES, writers=("sequence", "producer"))
    ),
    "trim moves backwards": Mutant(trim_moves_backwards, ("I13", "did not fail"), script=late_trim),
    "old epochs may append": Mutant(
        old_epochs_may_append, ("I1", "I3", "I7"), _plan("partition", "pause", writers=("owned",))
    ),
}


def hunt(mutant: Mutant) -> tuple[int, list[str]]:
    """The first seed that finds it and what it reports; -1 when none does."""
    for seed in range(mutant.seeds):
        found = mutant.violations(seed)
        told = [text for text in found if any(name in text for name in mutant.finds)]
        if told:
            return seed, told
    return -1, []


def main(names: list[str]) -> None:
    for name, mutant in MUTANTS.items():
        if names and not any(word in name for word in names):
            continue
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            seed, told = hunt(mutant)
        sys.stdout.write(f"{name}: seed {seed}\n" + "".join(f"    {t}\n" for t in told[:3]))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
