"""The records of several placement managers, written by their leader only.

Every transaction compares the leader key with this leader's value and term, and the *head*, a key
that the transaction before it wrote and that it replaces. So transactions of a term form a chain:
sent again after an answer was lost, one takes effect at most once, and the head tells whether it
did. A leader that cannot find out in its time is deposed, and whoever leads next reads everything.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    HeadraceError,
    NotLeaderError,
    UnavailableError,
)
from headrace.placement.metadata.election import (
    LEADER_KEY,
    Condition,
    Coordinator,
    CreatedAt,
    KeyValue,
    LeaseElection,
    RefusedError,
    Transaction,
    ValueIs,
)
from headrace.placement.metadata.records import (
    OPERATIONS_MAX,
    Operations,
    Put,
    Record,
    Table,
    decode_record,
    encode_record,
)
from headrace.placement.metadata.store import Store
from headrace.runtime.interfaces import Runtime

RECORDS = "records/"
HEAD_KEY = "head"
_RETRY_SECONDS = 0.05


@dataclass(slots=True)
class _Chain:
    """Of one term."""

    term: int
    head: bytes | None  # None: nothing was ever written
    written: int = 0


@dataclass(slots=True)
class _Waiting:
    chain: _Chain  # of the term in which it was decided: it is never written in another
    operations: Operations
    done: asyncio.Future[None]


class GuardedStore(Store):
    """Commits group: what waits for the one in flight goes in one transaction together."""

    def __init__(self, runtime: Runtime, coordinator: Coordinator, election: LeaseElection) -> None:
        self._clock = runtime.clock
        self._coordinator = coordinator
        self._election = election
        self._chain: _Chain | None = None
        self._turn = asyncio.Lock()
        self._waiting: list[_Waiting] = []

    async def load(self) -> list[Record]:
        """Everything, once the transactions of earlier leaders can no longer take effect."""
        term = self._election.term
        head = await self._coordinator.read(HEAD_KEY)
        entries = await self._coordinator.scan(RECORDS)
        if not self._election.leading or self._election.term != term:
            raise NotLeaderError("deposed while loading")
        self._chain = _Chain(term, head.value if head else None)
        return [decode_entry(entry) for entry in entries]

    async def _commit(self, operations: Operations) -> None:
        if self._chain is None:
            raise NotLeaderError("nothing was loaded in this term")
        waiting = _Waiting(self._chain, operations, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        async with self._turn:
            if not waiting.done.done():
                await self._write_waiting()
        await waiting.done

    async def _write_waiting(self) -> None:
        taken = [self._waiting.pop(0)]
        room = OPERATIONS_MAX - len(taken[0].operations)
        while (
            self._waiting
            and self._waiting[0].chain is taken[0].chain
            and len(self._waiting[0].operations) <= room
        ):
            taken.append(self._waiting.pop(0))
            room -= len(taken[-1].operations)
        chain = taken[0].chain
        outcome: HeadraceError | None = NotLeaderError("interrupted while writing")
        try:
            await self._write(chain, [o for each in taken for o in each.operations])
            outcome = None
        except HeadraceError as error:
            outcome = error
        finally:
            if outcome is not None and not isinstance(outcome, DiskFullError):
                self._depose(chain)
            for each in taken:
                if each.done.done():
                    continue
                if outcome is None:
                    each.done.set_result(None)
                else:
                    each.done.set_exception(outcome)

    async def _write(self, chain: _Chain, operations: Operations) -> None:
        chain.written += 1
        head = f"{chain.term}/{chain.written}".encode()
        transaction = self._transaction(chain, head, operations)
        in_doubt = False
        while True:
            if not self._election.leading or self._chain is not chain:
                # It may have happened: only whoever leads next can find out, by loading.
                raise NotLeaderError("deposed while writing")
            try:
                outcome = await self._coordinator.write(transaction)
                if outcome.succeeded or await self._happened(chain, head):
                    chain.head = head
                    return
            except DiskFullError as error:
                if not in_doubt:
                    raise  # nothing of it happened
                raise NotLeaderError("unknown whether it was written", cause=str(error)) from error
            except RefusedError as error:
                raise NotLeaderError("not allowed to write", cause=str(error)) from error
            except UnavailableError:
                in_doubt = True
                await self._clock.sleep(_RETRY_SECONDS)
                continue
            raise NotLeaderError("another placement manager leads")

    def _transaction(self, chain: _Chain, head: bytes, operations: Operations) -> Transaction:
        before: Condition = (
            CreatedAt(HEAD_KEY, 0) if chain.head is None else ValueIs(HEAD_KEY, chain.head)
        )
        puts = {HEAD_KEY: head}
        removes: dict[str, None] = {}
        for operation in operations:  # the last one wins: a transaction may name a key once
            key = f"{RECORDS}{operation.record.table}/{operation.record.key}"
            if isinstance(operation, Put):
                puts[key] = encode_record(operation.record)
                removes.pop(key, None)
            else:
                puts.pop(key, None)
                removes[key] = None
        return Transaction(
            [
                CreatedAt(LEADER_KEY, chain.term),
                ValueIs(LEADER_KEY, self._election.candidate),
                before,
            ],
            puts,
            list(removes),
        )

    async def _happened(self, chain: _Chain, head: bytes) -> bool:
        """After a refusal: whether an earlier attempt of the same transaction got through."""
        found = await self._coordinator.read(HEAD_KEY)
        leader = await self._coordinator.read(LEADER_KEY)
        return (
            found is not None
            and found.value == head
            and leader is not None
            and leader.create_revision == chain.term
        )

    def _depose(self, chain: _Chain) -> None:
        if self._chain is chain:
            self._chain = None
        if self._election.term == chain.term:
            self._election.depose()

    async def close(self) -> None:
        """The coordinator belongs to the caller."""


def decode_entry(entry: KeyValue) -> Record:
    table, _, key = entry.key.removeprefix(RECORDS).partition("/")
    try:
        record = decode_record(Table(table), entry.value)
    except (ValueError, msgspec.MsgspecError) as error:
        raise CorruptionError("unreadable placement record", key=entry.key) from error
    if record.key != key:
        raise CorruptionError("placement record under a wrong key", key=entry.key)
    return record
