"""APPEND and FETCH for a broker in the same process: no messages, no tasks, no second checksum.

The rules are those of `append.requests` and `fetch`; what is not simple is left to the opcodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from headrace.datanode.append.requests import DataNode
from headrace.errors import HeadraceError, InvalidArgumentError, UnavailableError
from headrace.observability import tracing
from headrace.runtime.interfaces import Buffer


def _reason(done: asyncio.Future[None]) -> str:
    return "cut off" if done.cancelled() else str(done.exception() or "")


class InProcessNode:
    """The data node as a broker of the same process calls it: a `LocalNode`."""

    def __init__(self, node: DataNode) -> None:
        self._node = node
        self._state = node.state
        self._counters = node.counters
        self._monotonic = node.runtime.clock.monotonic

    def append(
        self,
        stream_id: int,
        range_index: int,
        *,
        writer_epoch: int,
        expected_offset: int,
        header: bytearray,
        body: Sequence[Buffer],
    ) -> asyncio.Future[None]:
        try:
            log = self._state.writable(stream_id, range_index)
            self._state.check_append(
                log, writer_epoch=writer_epoch, expected_offset=expected_offset
            )
            if log.writer_epoch < 0:
                raise InvalidArgumentError("not an owned stream", stream_id=stream_id)
            if log.ack_quorum == 1:
                stored = log.append(header, body, verified=True)
            else:
                stored = self._node.leading.require(log).append(header, body)
        except HeadraceError as error:
            self._node.on_append_failed(error)
            raise
        self._counters.appends_in_flight += 1
        started = self._monotonic()
        stored.add_done_callback(lambda done: self._on_done(done, started))
        if tracing.active:
            span = tracing.begin_aside(
                "headrace.node.append",
                stream_id=stream_id,
                offset=expected_offset,
                bytes=len(header) + sum(map(len, body)),
            )
            stored.add_done_callback(lambda done: span.end(error=_reason(done)))
        return stored

    def _on_done(self, stored: asyncio.Future[None], started: float) -> None:
        counters = self._counters
        counters.appends_in_flight -= 1
        counters.appends += 1
        counters.append_times.observe(self._monotonic() - started)
        error = UnavailableError() if stored.cancelled() else stored.exception()
        if isinstance(error, HeadraceError):
            self._node.on_append_failed(error)

    def read_cached(
        self, stream_id: int, offset: int, max_bytes: int
    ) -> Sequence[Sequence[memoryview]]:
        try:
            log = self._state.containing(stream_id, offset)
        except HeadraceError:
            return ()
        found = log.read_cached_pieces(offset, max_bytes)
        if found:
            self._counters.fetches += 1
            self._counters.bytes_out += sum(map(len, chain.from_iterable(found)))
        return found
