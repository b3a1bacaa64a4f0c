"""Duplicate suppression for plain streams: one stored batch per (producer id, sequence).

Per producer the last batches are remembered by the sequence that follows them. The table is
bounded: the producer that was silent longest is forgotten first, and may then repeat a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.errors import InvalidArgumentError
from headrace.wire.sbp.messages import ProducerState


@dataclass(slots=True)
class Producers:
    """Of one stream."""

    producers_max: int
    batches_max: int
    _table: OrderedDict[int, OrderedDict[int, int]] = field(default_factory=OrderedDict)
    """Producer id -> next sequence after a batch -> that batch's base offset; oldest first."""

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
        if sequence != expected:
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
        self._table.move_to_end(producer_id)
        while len(batches) > self.batches_max:
            batches.popitem(last=False)
        while len(self._table) > self.producers_max:
            self._table.popitem(last=False)

    def on_failed(self, producer_id: int, next_sequence: int, base_offset: int) -> None:
        """The batch was not stored after all: its producer may send it again."""
        batches = self._table.get(producer_id)
        if batches is not None and batches.get(next_sequence) == base_offset:
            del batches[next_sequence]
            if not batches:
                del self._table[producer_id]

    def merge(self, states: Iterable[ProducerState]) -> None:
        """What another node, or this one before a seal, knew."""
        merged: dict[int, None] = {}
        for state in states:
            self.on_stored(state.producer_id, state.next_sequence, state.last_base_offset)
            merged[state.producer_id] = None
        for producer_id in merged:
            # The other may remember longer than we do: the last batch is the one that comes next.
            batches = self._table.get(producer_id)
            if batches is not None:
                self._table[producer_id] = OrderedDict(sorted(batches.items()))

    def forget_from(self, offset: int) -> None:
        """A range opens there: what was stored from there on has not become part of the stream,
        and its producers may send it again."""
        for producer_id, batches in list(self._table.items()):
            for next_sequence in [n for n, base in batches.items() if base >= offset]:
                del batches[next_sequence]
            if not batches:
                del self._table[producer_id]

    def states(self, end: int) -> tuple[ProducerState, ...]:
        """One entry per batch stored below `end`, in an order that `merge` keeps."""
        return tuple(
            ProducerState(
                producer_id=producer_id,
                next_sequence=next_sequence,
                last_base_offset=base_offset,
            )
            for producer_id, batches in self._table.items()
            for next_sequence, base_offset in batches.items()
            if base_offset < end
        )
