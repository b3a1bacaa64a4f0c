"""Duplicate suppression for plain streams: one stored batch per (producer id, sequence).

Per producer the last batches are remembered by the sequence that follows them, with their number of
records and their CRC: a repetition is the same batch, and not another one that ends there. The
table is bounded: the producer that was silent longest is forgotten first, and may then repeat a
batch.

Each range has a `Producers` table of its own: what was known when it was opened, which comes with
SYNC_RANGES and is kept beside its log, and the batches in that log. So it is the same on every
replica and after every restart, whatever else a node has heard of the stream. What a table says are
facts of the log: tables of one stream may be joined in any order, and the batch with the highest
offset is the last. `ProducerTables` keeps in memory those of open ranges, and of a stream's last
one that was sealed; others are read back when a placement manager asks for them, by a seal.

The table travels with the seal, so a primary may be sent a batch that is in the range before its
own. `EarlierRanges` holds back its acknowledgement until enough disks have it: where that range
ends in what too few disks hold, its end has to be healed first.
"""

from __future__ import annotations

import logging
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.config.datanode import DataNodeSettings
from headrace.errors import HeadraceError, InvalidArgumentError, StateError, ThrottledError
from headrace.runtime.interfaces import Clock
from headrace.sbp_client.ranges import are_held
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.messages import ProducerState
from headrace.wire.sbp.records import PRODUCER, split

_START = struct.Struct("<q")
_ENTRY_1 = struct.Struct("<qqq")
_VERSION_2 = -2  # where version 1 has the start of the range, which is never negative
_ENTRY = struct.Struct("<qqqiq")
_SCAN_BYTES = 1 << 20
_PAUSE_MIN = 0.05
_PAUSE_MAX = 0.2
_SECONDS_MAX = 0.5
"""Then the producer is told to come again: one that hears nothing would seal its range."""
_KNOWN_MAX = 10_000
_log = logging.getLogger(__name__)


class _Stored(NamedTuple):
    base_offset: int
    records: int = -1
    """-1, here and in `crc`: told by somebody who does not know."""
    crc: int = -1

    def is_batch(self, records: int, crc: int) -> bool:
        return self.records in (-1, records) and (self.crc == crc or -1 in (self.crc, crc))


@dataclass(slots=True)
class Producers:
    """Of one range."""

    producers_max: int
    batches_max: int
    whole: bool = True
    """Whether nothing within the bounds is missing."""
    _table: OrderedDict[int, OrderedDict[int, _Stored]] = field(default_factory=OrderedDict)
    """Producer id -> next sequence after a batch -> that batch; oldest first."""
    _uncertain: set[int] = field(default_factory=set)
    """Producers that may have stored later batches than those known."""

    def find(self, producer_id: int, sequence: int, count: int, crc: int = -1) -> int | None:
        """The base offset of the batch if it is stored already, None if it is the next one.

        InvalidArgumentError when batches before it are missing, it is too old to be told, or
        another batch was stored in its place.
        """
        batches = self._table.get(producer_id)
        if not batches:
            return None
        stored = batches.get(sequence + count)
        if stored is not None:
            if stored.is_batch(count, crc):
                return stored.base_offset
            raise InvalidArgumentError(
                "another batch of this producer ends at that sequence",
                producer_id=producer_id, found=sequence, records=count, stored=stored.records,
            )  # fmt: skip
        expected = next(reversed(batches))
        if sequence != expected and producer_id not in self._uncertain:
            raise InvalidArgumentError(
                "producer sequence out of order",
                producer_id=producer_id,
                expected=expected,
                found=sequence,
            )
        return None

    def on_stored(
        self,
        producer_id: int,
        next_sequence: int,
        base_offset: int,
        records: int = -1,
        crc: int = -1,
    ) -> None:
        batches = self._table.setdefault(producer_id, OrderedDict())
        batches[next_sequence] = _Stored(base_offset, records, crc)
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
        stored = batches.get(next_sequence) if batches is not None else None
        if batches is not None and stored is not None and stored.base_offset == base_offset:
            del batches[next_sequence]
            if not batches:
                del self._table[producer_id]

    def merge(self, states: Iterable[ProducerState]) -> None:
        """What was known before the range, or elsewhere. Any order, any number of times."""
        facts: dict[tuple[int, int], _Stored] = {}
        for state in (*self.states(), *states):
            key = (state.producer_id, state.next_sequence)
            fact = _Stored(state.last_base_offset, state.records, state.crc)
            facts[key] = max(fact, facts.get(key, fact))  # of one batch, who knows more of it
        self._table.clear()
        for (producer_id, next_sequence), fact in sorted(facts.items(), key=lambda each: each[1]):
            self.on_stored(producer_id, next_sequence, *fact)

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
                last_base_offset=stored.base_offset,
                records=stored.records,
                crc=stored.crc,
            )
            for producer_id, batches in self._table.items()
            if producer_id not in self._uncertain
            for next_sequence, stored in batches.items()
            if end is None or stored.base_offset < end
        )


def encode_producers(start_offset: int, states: Iterable[ProducerState]) -> bytes:
    """Where the range starts, and what is known then; nothing when nothing is."""
    entries = [
        _ENTRY.pack(
            state.producer_id, state.next_sequence, state.last_base_offset, state.records, state.crc
        )
        for state in states
    ]
    head = (_START.pack(_VERSION_2), _START.pack(start_offset))
    return b"".join((*head, *entries)) if entries else b""


def decode_producers(data: bytes) -> tuple[int, tuple[ProducerState, ...]]:
    if not data:
        return 0, ()
    (start_offset,) = _START.unpack_from(data)
    entry, body = _ENTRY_1, memoryview(data)[_START.size :]
    if start_offset == _VERSION_2:
        (start_offset,) = _START.unpack_from(body)
        entry, body = _ENTRY, body[_START.size :]
    return start_offset, tuple(ProducerState(*each) for each in entry.iter_unpack(body))


class ProducerTables:
    """The tables of the plain ranges that this node holds."""

    def __init__(self, settings: DataNodeSettings) -> None:
        self._settings = settings
        self._streams: dict[int, dict[RangeKey, tuple[RangeLog, Producers]]] = {}

    def open(self, log: RangeLog) -> Producers:
        """Of an open range; every one has its table from the moment it takes appends."""
        return self._streams[log.key.stream_id][log.key][1]

    def on_opened(self, log: RangeLog, known: Iterable[ProducerState]) -> None:
        """`known` is what its log begins with; the second time nothing changes."""
        if self._find(log.key) is None:
            table = self._new()
            table.merge(known)
            self._keep(log, table)

    async def recover(self, log: RangeLog) -> None:
        """Of an open range, at start."""
        self._keep(log, await self._read(log))

    async def sealed(self, log: RangeLog) -> tuple[tuple[ProducerState, ...], bool]:
        """What was known when the range ended here, and whether that is all."""
        if log.missing is not None:
            return (), False
        table = self._find(log.key) or await self._read(log)
        return table.states(log.end_offset), table.whole

    def forget(self, key: RangeKey) -> None:
        """It is gone, or its log is going to hold more than what came to it by appends."""
        tables = self._streams.get(key.stream_id, {})
        tables.pop(key, None)
        if not tables:
            self._streams.pop(key.stream_id, None)

    def _find(self, key: RangeKey) -> Producers | None:
        found = self._streams.get(key.stream_id, {}).get(key)
        return found[1] if found is not None else None

    def _keep(self, log: RangeLog, table: Producers) -> None:
        tables = self._streams.setdefault(log.key.stream_id, {})
        for key in [key for key, (other, _) in tables.items() if other.sealed]:
            del tables[key]
        tables[log.key] = (log, table)

    def _new(self) -> Producers:
        return Producers(self._settings.producers_max, self._settings.producer_batches_max)

    async def _read(self, log: RangeLog) -> Producers:
        """What the range began with, then its log; of a long one only the end."""
        table = self._new()
        end = log.durable_offset
        offset = max(log.start_offset, end - self._settings.producer_scan_records)
        try:
            attachment = await log.attachment()
            if attachment is None:
                table.whole = False
            else:
                start, known = decode_producers(attachment)
                table.merge(known)
                if offset > (start if known else log.start_offset):
                    table.doubt_all()  # they may have written what is not read
            while offset < end and (views := await log.read_durable(offset, _SCAN_BYTES)):
                for view in views:
                    for header, _ in split(view):
                        offset = header.next_offset
                        if header.attributes & PRODUCER:
                            next_sequence = header.sequence + header.record_count
                            table.on_stored(
                                header.producer_id,
                                next_sequence,
                                header.base_offset,
                                header.record_count,
                                header.crc,
                            )
        except HeadraceError as error:
            _log.warning("producers of %s not read: %s", log.key, error)
            table.doubt_all()
        return table


class EarlierRanges:
    """Asks the placement manager, once for every range that is opened and asked about."""

    def __init__(
        self, clock: Clock, list_stream: Callable[[int], Awaitable[Sequence[m.Range]]]
    ) -> None:
        self._clock = clock
        self._list_stream = list_stream
        self._held: dict[RangeKey, None] = {}  # ranges before which nothing is in doubt

    async def wait_held(self, key: RangeKey, start: int, end: int) -> None:
        """Until as many disks hold [start, end), which lies before range `key`, as it takes.

        ThrottledError when that is not known in a moment, StorageError when it was given up.
        """
        pause = _PAUSE_MIN
        deadline = self._clock.monotonic() + _SECONDS_MAX
        while key not in self._held and not await self._ask(key, start, end):
            if self._clock.monotonic() >= deadline:
                raise ThrottledError("stored on fewer disks than promised so far", offset=start)
            await self._clock.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX)

    async def _ask(self, key: RangeKey, start: int, end: int) -> bool:
        try:
            ranges = await self._list_stream(key.stream_id)
        except StateError as error:
            if not error.retryable:
                raise
            return False
        if not any(range_.doubtful_offset >= 0 for range_ in ranges):
            if len(self._held) >= _KNOWN_MAX:
                self._held.clear()
            self._held[key] = None
        return are_held(ranges, start, end)
