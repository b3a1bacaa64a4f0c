"""What writers were told against what readers find: a checker for runs with faults.

Every payload is sent once under that name; whoever tries again after an unknown outcome uses
another, unless duplicates are suppressed underneath. A history then is faulty when an acknowledged
record is missing or stands elsewhere, when one is stored twice or was never sent, when the records
of one writer stand in another order than it sent them, or when offsets have holes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

SHOWN_MAX = 5


@dataclass(slots=True, eq=False)
class Sent:
    """One record on its way into a stream."""

    stream: Hashable
    writer: Hashable
    payload: bytes
    acknowledged: bool = False
    offset: int | None = None
    """Where the acknowledgement said it is; None where the protocol does not tell."""

    def on_acknowledged(self, offset: int | None = None) -> None:
        self.acknowledged, self.offset = True, offset


@dataclass(slots=True)
class History:
    records: list[Sent] = field(default_factory=list)

    def send(self, stream: Hashable, writer: Hashable, payload: bytes) -> Sent:
        """Call it in the order of the writer's sends."""
        sent = Sent(stream, writer, payload)
        self.records.append(sent)
        return sent

    def acknowledged(self, stream: Hashable | None = None) -> int:
        return sum(r.acknowledged for r in self.records if stream in (None, r.stream))

    def check(self, stored: Mapping[Hashable, Sequence[tuple[int, bytes]]]) -> list[str]:
        """Violations, in words; `stored` has offset and payload of all records of each stream."""
        found: list[str] = []
        for stream in {record.stream: None for record in self.records} | dict.fromkeys(stored):
            records = [record for record in self.records if record.stream == stream]
            found += _check_stream(stream, records, stored.get(stream, ()))
        return found


def _check_stream(
    stream: Hashable, records: Sequence[Sent], stored: Sequence[tuple[int, bytes]]
) -> list[str]:
    found: list[str] = []

    def report(what: str, items: Sequence[object]) -> None:
        if items:
            shown = ", ".join(map(str, items[:SHOWN_MAX]))
            found.append(f"stream {stream}: {len(items)} {what}: {shown}")

    offsets = [offset for offset, _ in stored]
    holes = [b for a, b in pairwise(offsets) if b != a + 1]
    report("holes or steps back in the offsets, before", holes)
    counts = Counter(payload for _, payload in stored)
    report("stored more than once", [p for p, count in counts.items() if count > 1])
    sent = {record.payload: record for record in records}
    report("stored but never sent", [payload for payload in counts if payload not in sent])
    acknowledged = [record for record in records if record.acknowledged]
    lost = [record.payload for record in acknowledged if record.payload not in counts]
    report("acknowledged and lost", lost)
    at = dict(stored)
    report(
        "acknowledged at an offset that holds something else",
        [
            (record.offset, record.payload)
            for record in acknowledged
            if record.offset is not None
            and record.payload in counts
            and at.get(record.offset) != record.payload
        ],
    )
    report("stored out of order", _out_of_order(records, stored))
    return found


def _out_of_order(
    records: Sequence[Sent], stored: Sequence[tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    number = {record.payload: index for index, record in enumerate(records)}
    writer = {record.payload: record.writer for record in records}
    newest: dict[Hashable, int] = {}
    found = []
    for offset, payload in stored:
        if payload in number:
            if number[payload] < newest.get(writer[payload], -1):
                found.append((offset, payload))
            newest[writer[payload]] = max(newest.get(writer[payload], -1), number[payload])
    return found
