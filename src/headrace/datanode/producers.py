"""Duplicate suppression for plain streams: one stored batch per (producer id, sequence).

Per producer the last batches are remembered by the sequence that follows them. The table is
bounded: the producer that was silent longest is forgotten first, and may then repeat a batch.

A range has a table of its own: what was known when it was opened, which comes with SYNC_RANGES and
is kept beside its log, and the batches in that log. So it is the same on every replica and after
every restart, whatever else a node has heard of the stream. What a table says are facts of the log:
tables of one stream may be joined in any order, and the batch with the highest offset is the last.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.errors import InvalidArgumentError
from headrace.wire.sbp.messages import ProducerState

_START = struct.Struct("<q")
_ENTRY = struct.Struct("<qqq")


@dataclass(slots=True)
class Producers:
    """Of one range."""

    producers_max: int
    batches_max: int
    whole: bool = True
    """Whether nothing within the bounds is missing."""
    _table: OrderedDict[int, OrderedDict[int, int]] = field(default_factory=OrderedDict)
    """Producer id -> next sequence after a batch -> that batch's base offset; oldest first."""
    _uncertain: set[int] = field(default_factory=set)
    """Producers that may have stored later batches than those known."""

    def find(self, producer_id: int, sequence: int, count: int) -> int | None:
        """The base offset of the batch if it is stored already, None if it is the next one.

        InvalidArgumentError when batches before it are missing, or it is too old to be told.
        """
        batches = self._table.get(producer_id)
        if not batches:
            return None
        stored = batches.get(sequence + count)
        if stored is not None:
            return stored
        expected = next(reversed(batches))
        if sequence != expected and producer_id not in self._uncertain:
            raise InvalidArgumentError(
                "producer sequence out of order",
                producer_id=producer_id,
                expected=expected,
                found=sequence,
            )
        return None

    def on_stored(self, producer_id: int, next_sequence: int, base_offset: int) -> None:
        batches = self._table.setdefault(producer_id, OrderedDict())
        batches[next_sequence] = base_offset
        batches.move_to_end(next_sequence)
        self._table.move_to_end(producer_id)
        self._uncertain.discard(producer_id)
        while len(batches) > self.batches_max:
            batches.popitem(last=False)
        while len(self._table) > self.producers_max:
            self._uncertain.discard(self._table.popitem(last=False)[0])

    def on_failed(self, producer_id: int, next_sequence: int, base_offset: int) -> None:
        """The batch was not stored after all: its producer may send it again."""
        batches = self._table.get(producer_id)
        if batches is not None and batches.get(next_sequence) == base_offset:
            del batches[next_sequence]
            if not batches:
                del self._table[producer_id]

    def merge(self, states: Iterable[ProducerState]) -> None:
        """What was known before the range, or elsewhere. Any order, any number of times."""
        facts: dict[tuple[int, int], int] = {}
        for state in (*self.states(), *states):
            key = (state.producer_id, state.next_sequence)
            facts[key] = max(state.last_base_offset, facts.get(key, -1))
        self._table.clear()
        for (producer_id, next_sequence), base in sorted(facts.items(), key=lambda fact: fact[1]):
            self.on_stored(producer_id, next_sequence, base)

    def doubt_all(self) -> None:
        """There may be later batches of any of them: what is known refuses nobody."""
        self._uncertain.update(self._table)
        self.whole = False

    def states(self, end: int | None = None) -> tuple[ProducerState, ...]:
        """One entry per batch stored below `end`, of producers whose last batch is known."""
        return tuple(
            ProducerState(
                producer_id=producer_id,
                next_sequence=next_sequence,
                last_base_offset=base_offset,
            )
            for producer_id, batches in self._table.items()
            if producer_id not in self._uncertain
            for next_sequence, base_offset in batches.items()
            if end is None or base_offset < end
        )


def encode_producers(start_offset: int, states: Iterable[ProducerState]) -> bytes:
    """Where the range starts, and what is known then; nothing when nothing is."""
    entries = [
        _ENTRY.pack(state.producer_id, state.next_sequence, state.last_base_offset)
        for state in states
    ]
    return b"".join((_START.pack(start_offset), *entries)) if entries else b""


def decode_producers(data: bytes) -> tuple[int, tuple[ProducerState, ...]]:
    if not data:
        return 0, ()
    (start_offset,) = _START.unpack_from(data)
    entries = _ENTRY.iter_unpack(memoryview(data)[_START.size :])
    return start_offset, tuple(ProducerState(*entry) for entry in entries)
