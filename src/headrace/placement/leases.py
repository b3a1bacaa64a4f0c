"""Named leases with epochs: who leads, and since which epoch.

Epoch and holder are durable before anybody hears of them; the deadline is not. After a restart a
held lease therefore runs for its whole duration again: its holder may still believe in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.errors import InvalidArgumentError
from headrace.placement.metadata.records import LeaseRecord, Operation, Put

DURATION_MS_MAX = 3_600_000
NAME_CHARACTERS_MAX = 255


@dataclass(frozen=True, slots=True)
class LeaseDecision:
    """`operations` first, then `on_decided`, then the answer."""

    granted: bool
    record: LeaseRecord
    operations: tuple[Operation, ...] = ()
    deadline_ms: int = 0


@dataclass(slots=True)
class Leases:
    """Times are milliseconds of the monotonic clock, given by the caller."""

    records: dict[str, LeaseRecord] = field(default_factory=dict)
    deadlines_ms: dict[str, int] = field(default_factory=dict)

    def on_recovered(self, now_ms: int) -> None:
        for record in self.records.values():
            if record.holder:
                self.deadlines_ms[record.name] = now_ms + record.duration_ms

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
        current = self.records.get(name, LeaseRecord(name=name, epoch=0))
        mine = current.holder == holder
        if epoch >= 0:
            if not mine or epoch != current.epoch:
                return LeaseDecision(False, current)
            next_epoch = epoch
        elif mine or not self.held(name, now_ms):
            next_epoch = current.epoch + 1
        else:
            return LeaseDecision(False, current)
        record = LeaseRecord(
            name=name, epoch=next_epoch, holder=holder, duration_ms=duration_ms, address=address
        )
        operations = () if record == current else (Put(record),)
        return LeaseDecision(True, record, operations, now_ms + duration_ms)

    def release(self, name: str, *, holder: str, epoch: int) -> LeaseDecision:
        """`granted` says that this holder does not hold it any more; the epoch stays."""
        current = self.records.get(name, LeaseRecord(name=name, epoch=0))
        if current.holder != holder:
            return LeaseDecision(not current.holder and epoch == current.epoch, current)
        if epoch != current.epoch:
            return LeaseDecision(False, current)
        record = LeaseRecord(name=name, epoch=current.epoch)
        return LeaseDecision(True, record, (Put(record),))

    def on_decided(self, verdict: LeaseDecision) -> None:
        """The verdict's operations are durable and applied."""
        if verdict.granted:
            self.deadlines_ms[verdict.record.name] = verdict.deadline_ms

    def held(self, name: str, now_ms: int) -> bool:
        record = self.records.get(name)
        return bool(record and record.holder) and self.remaining_ms(name, now_ms) > 0

    def remaining_ms(self, name: str, now_ms: int) -> int:
        return max(0, self.deadlines_ms.get(name, 0) - now_ms)
