"""The tables of producers of the plain ranges that this node holds.

In memory are those of open ranges, and of a stream's last one that was sealed. Others are read back
when a placement manager asks for them, by a seal.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.append.producers import Producers, decode_producers
from headrace.errors import HeadraceError
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp.messages import ProducerState
from headrace.wire.sbp.records import PRODUCER, split

_SCAN_BYTES = 1 << 20

_log = logging.getLogger(__name__)


class Tables:
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
