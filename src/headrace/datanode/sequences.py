"""What is known of the producers of plain streams, from one range to the next.

A primary learns sequences from appends, a secondary from its primary's. The table of a range is
*whole* when it also has what came before: the placement manager carried it over from the seal of
the range before, or the log of the last records was read. Only whole tables are given away with a
seal. A primary that was given none reads the log, from other replicas where it must: a batch that
is sent again must not be stored again because somebody has restarted in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from headrace.datanode.producers import Producers
from headrace.errors import HeadraceError, UnavailableError
from headrace.storage.model import RangeKey
from headrace.storage.rangelog import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.records import PRODUCER, BatchHeader, split

if TYPE_CHECKING:
    from headrace.datanode.service import DataNodeService

_READ_BYTES = 1 << 20

WHOLE = m.ProducerState()
"""Stands before the entries of a whole table, so that "none" and "not known" differ."""

_log = logging.getLogger(__name__)


class Sequences:
    """The tables of all streams."""

    def __init__(self, node: DataNodeService) -> None:
        self._node = node
        self._tables: dict[int, Producers] = {}
        self._whole: set[RangeKey] = set()

    def of(self, stream_id: int) -> Producers:
        table = self._tables.get(stream_id)
        if table is None:
            table = self._tables[stream_id] = self._new_table()
        return table

    def _new_table(self) -> Producers:
        settings = self._node.settings
        return Producers(settings.producers_max, settings.producer_batches_max)

    def forget(self, stream_id: int) -> None:
        self._tables.pop(stream_id, None)
        self._whole = {key for key in self._whole if key.stream_id != stream_id}

    def sealed(self, log: RangeLog) -> tuple[m.ProducerState, ...]:
        """What goes with the answer to a seal: the table up to the range's end, if it is whole."""
        if log.writer_epoch >= 0 or log.key not in self._whole:
            return ()
        return WHOLE, *self.of(log.key.stream_id).states(log.end_offset)

    def on_incomplete(self, log: RangeLog) -> None:
        """Some of the range comes by copying, of which the table knows nothing."""
        self._whole.discard(log.key)

    # Restart

    async def scan(self, stream_id: int) -> None:
        """Learn the last sequences from the end of the log."""
        ranges = self._node.state.ranges(stream_id)
        if not ranges:
            return  # deleted while others were read
        end = ranges[-1].durable_offset
        first = end - self._node.settings.producer_scan_records
        whole = True
        for log in reversed(ranges):
            if log.durable_offset < end or log.missing is not None:
                whole = False  # what is between is on other nodes
                break
            if log.start_offset <= first:
                break
            end = log.start_offset
        else:
            whole = ranges[0].key.range_index == 0
        try:
            await self._scan_ranges(ranges, first)
        except HeadraceError as error:
            _log.warning("producers of stream %d not read: %s", stream_id, error)
            whole = False
        if whole:
            self._whole.add(ranges[-1].key)

    async def _scan_ranges(self, ranges: Sequence[RangeLog], first: int) -> None:
        starts = [*(log.start_offset for log in ranges[1:]), ranges[-1].durable_offset]
        for log, next_start in zip(ranges, starts, strict=True):
            end = min(log.durable_offset, next_start)  # what is beyond is no part of the stream
            table = self.of(log.key.stream_id)
            await self._scan_log(log, max(log.start_offset, first), end, table)

    async def _scan_log(self, log: RangeLog, offset: int, end: int, table: Producers) -> None:
        while offset < end:
            for view in await log.read_durable(offset, _READ_BYTES):
                for header, _ in split(view):
                    offset = header.next_offset
                    _note(table, header, end)

    # A range opens

    def on_opened(self, log: RangeLog, states: Iterable[m.ProducerState]) -> None:
        """Nothing at or above its start is part of the stream yet."""
        if log.writer_epoch >= 0:
            return
        key, start = log.key, log.start_offset
        given = tuple(states)
        if key.range_index == 0 or WHOLE in given or self._is_whole(key.stream_id, start):
            self._whole.add(key)
        table = self.of(key.stream_id)
        table.forget_from(start)
        table.merge(state for state in given if state != WHOLE)

    def _is_whole(self, stream_id: int, start: int) -> bool:
        """Whether the table has everything up to there."""
        return any(
            log.key in self._whole and log.start_offset <= start <= log.durable_offset
            for log in self._node.state.ranges(stream_id)
        )

    async def prepare(self, wanted: m.Range) -> None:
        """Before this node becomes the primary of a range: know what was stored before it.

        UnavailableError when nobody who has it can be asked.
        """
        stream_id, start = wanted.stream_id, wanted.start_offset
        if wanted.writer_epoch >= 0 or wanted.range_index == 0 or WHOLE in wanted.producers:
            return
        if self._is_whole(stream_id, start):
            return
        table = self._new_table()
        listed = await self._node.contact.list_stream(stream_id)
        first = start - self._node.settings.producer_scan_records
        for range_ in sorted(listed, key=lambda range_: range_.range_index):
            offset = max(range_.start_offset, first)
            end = min(range_.end_offset, start)
            if range_.range_index < wanted.range_index and offset < end:
                await self._read(range_, offset, end, table)
        self._tables[stream_id] = table
        self._whole.add(RangeKey(stream_id, wanted.range_index))

    async def _read(self, range_: m.Range, offset: int, end: int, table: Producers) -> None:
        key = RangeKey(range_.stream_id, range_.range_index)
        log = self._node.state.find(key)
        try:
            if log is not None and log.final and log.durable_offset >= end:
                await self._scan_log(log, offset, end, table)
                return
            while offset < end:
                for header, _ in await self._node.peers.fetch_any(key, offset, _READ_BYTES):
                    offset = header.next_offset
                    _note(table, header, end)
        except HeadraceError as error:
            if len(range_.replica_nodes) > 1:
                raise UnavailableError(
                    "what was stored before is not known", **key._asdict(), offset=offset
                ) from error
            _log.warning("producers of %s are unknown from %d on: %s", key, offset, error)


def _note(table: Producers, header: BatchHeader, end: int) -> None:
    if header.attributes & PRODUCER and header.base_offset < end:
        sequence = header.sequence + header.record_count
        table.on_stored(header.producer_id, sequence, header.base_offset)
