"""Named leases with epochs: who leads, and since which epoch.

Epoch and holder are durable before anybody hears of them; the deadline is not. After a restart a
held lease therefore runs for its whole duration again: its holder may still believe in it.

A renewal by the same holder changes nothing that is durable. Many names may be changed in one
request; each is decided on its own, as if it had come alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.errors import HeadraceError, InvalidArgumentError
from headrace.placement.metadata.records import LeaseRecord, Operation, Put
from headrace.wire.sbp.messages import LeaseAction, LeaseChange

DURATION_MS_MAX = 3_600_000
NAME_CHARACTERS_MAX = 255
_SHARD = "/shard/"
NAMES_MAX = 256
"""That one request may change."""


@dataclass(frozen=True, slots=True)
class LeaseDecision:
    """`operations` first, then `on_decided`, then the answer."""

    granted: bool
    record: LeaseRecord
    operations: tuple[Operation, ...] = ()
    deadline_ms: int = 0


def _family(name: str) -> str:
    """Leases of shards belong to the lease that their names begin with."""
    return name.partition(_SHARD)[0]


@dataclass(slots=True)
class Leases:
    """Times are milliseconds of the monotonic clock, given by the caller."""

    records: dict[str, LeaseRecord] = field(default_factory=dict)
    deadlines_ms: dict[str, int] = field(default_factory=dict)
    version: int = 0
    """Another one whenever a lease gets a holder, an epoch or an address, or loses its holder;
    not when it is renewed. It rises during a term, and begins anew with each."""
    _running: set[str] = field(default_factory=set)
    """Names that count as held in `version`."""

    def on_recovered(self, now_ms: int) -> None:
        for record in self.records.values():
            if record.holder:
                self.deadlines_ms[record.name] = now_ms + record.duration_ms
        self._running = {record.name for record in self.records.values() if record.holder}

    def put(self, record: LeaseRecord) -> None:
        """It is durable."""
        if self.records.get(record.name) != record:
            self.records[record.name] = record
            self.version += 1

    # Decisions

    def acquire(
        self, name: str, *, holder: str, duration_ms: int, address: str, epoch: int, now_ms: int
    ) -> LeaseDecision:
        """Grant, renew or refuse.

        With the current epoch the holder renews and keeps it, even late, while nobody came in
        between. Without an epoch it is a new incarnation: a free lease, or its own, goes to it
        with the next epoch. Any other epoch belongs to a leadership that is over.
        """
        if not name or not holder or max(len(name), len(holder)) > NAME_CHARACTERS_MAX:
            raise InvalidArgumentError("a lease needs a name and a holder")
        if not 0 < duration_ms <= DURATION_MS_MAX:
            raise InvalidArgumentError("lease duration out of bounds", duration_ms=duration_ms)
        current = self._current(name)
        mine = current.holder == holder
        if epoch >= 0:
            if not mine or epoch != current.epoch:
                return LeaseDecision(False, current)
            next_epoch = epoch
        elif mine or not self.held(name, now_ms):
            next_epoch = self._last_epoch(name) + 1
        else:
            return LeaseDecision(False, current)
        record = LeaseRecord(
            name=name, epoch=next_epoch, holder=holder, duration_ms=duration_ms, address=address
        )
        operations = () if record == current else (Put(record),)
        return LeaseDecision(True, record, operations, now_ms + duration_ms)

    def _last_epoch(self, name: str) -> int:
        """The highest of the family: who leads all of its shards under one lease and who leads one
        under that shard's own write to the same streams, and none may be below the other."""
        family = _family(name)
        return max((r.epoch for r in self.records.values() if _family(r.name) == family), default=0)

    def release(self, name: str, *, holder: str, epoch: int) -> LeaseDecision:
        """`granted` says that this holder does not hold it any more; the epoch stays."""
        current = self._current(name)
        if current.holder != holder:
            return LeaseDecision(not current.holder and epoch == current.epoch, current)
        if epoch != current.epoch:
            return LeaseDecision(False, current)
        return _freed(current)

    def change_many(
        self,
        changes: Sequence[LeaseChange],
        *,
        holder: str,
        duration_ms: int,
        address: str,
        now_ms: int,
    ) -> list[LeaseDecision | HeadraceError]:
        """One outcome per name, in order; one that is refused, or asked for wrongly, costs the
        others nothing. InvalidArgumentError for all when there are too many names, or one twice."""
        if len(changes) > NAMES_MAX:
            raise InvalidArgumentError("too many leases in one request", limit=NAMES_MAX)
        if len({change.name for change in changes}) < len(changes):
            raise InvalidArgumentError("a lease is named twice in one request")

        def decide(change: LeaseChange) -> LeaseDecision:
            match change.action:
                case LeaseAction.ACQUIRE:
                    return self.acquire(
                        change.name,
                        holder=holder,
                        duration_ms=duration_ms,
                        address=address,
                        epoch=change.epoch,
                        now_ms=now_ms,
                    )
                case LeaseAction.RELEASE:
                    return self.release(change.name, holder=holder, epoch=change.epoch)
                case LeaseAction.QUERY:
                    return LeaseDecision(False, self._current(change.name))
            raise InvalidArgumentError("unknown lease action", action=change.action)

        outcomes: list[LeaseDecision | HeadraceError] = []
        for change in changes:
            try:
                outcomes.append(decide(change))
            except InvalidArgumentError as error:
                outcomes.append(error)
        return outcomes

    def release_holder(self, holder: str, names: Iterable[str]) -> list[LeaseDecision]:
        """Of those names, the ones that `holder` has: they are over, whatever epoch it knows. Each
        next holder gets a higher epoch; renewals of this one are refused."""
        current = map(self._current, names)
        return [_freed(record) for record in current if record.holder == holder]

    def on_decided(self, decision: LeaseDecision) -> None:
        """The decision's operations are durable and applied."""
        if not decision.granted:
            return
        name = decision.record.name
        self.deadlines_ms[name] = decision.deadline_ms
        if decision.record.holder and name not in self._running:
            self._running.add(name)
            self.version += 1  # also of one that was over, and is renewed
        elif not decision.record.holder:
            self._running.discard(name)

    def on_tick(self, now_ms: int) -> None:
        """Leases that have run out count as nobody's from now on."""
        over = {name for name in self._running if not self.held(name, now_ms)}
        if over:
            self._running -= over
            self.version += 1

    # Questions

    def _current(self, name: str) -> LeaseRecord:
        return self.records.get(name) or LeaseRecord(name=name, epoch=0)

    def held(self, name: str, now_ms: int) -> bool:
        record = self.records.get(name)
        return bool(record and record.holder) and self.remaining_ms(name, now_ms) > 0

    def remaining_ms(self, name: str, now_ms: int) -> int:
        return max(0, self.deadlines_ms.get(name, 0) - now_ms)

    def names(self, prefix: str, *, holder: str = "") -> list[str]:
        """All that were ever asked for, in order; with `holder` only those that it has."""
        return sorted(
            record.name
            for record in self.records.values()
            if record.name.startswith(prefix) and holder in ("", record.holder)
        )

    def next_end_ms(self) -> int | None:
        """When the first of the held leases runs out, if none is renewed."""
        return min((self.deadlines_ms.get(name, 0) for name in self._running), default=None)


def _freed(record: LeaseRecord) -> LeaseDecision:
    freed = LeaseRecord(name=record.name, epoch=record.epoch)
    return LeaseDecision(True, freed, (Put(freed),))
