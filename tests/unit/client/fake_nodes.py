"""Placement managers and data nodes of one cluster as scripted channels.

A data node keeps real batches per range and answers as the protocol says; a test makes it fail in
a given order: `script` holds, per opcode, what happens to the next calls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from headrace.config.process import ClientSettings
from headrace.errors import (
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    SealedError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.net.sbp_routes import Payload, Reply
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import Connect, PieceReader
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import NotPrimaryError, error_of, status_of
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import HEADER_BYTES, decode_header, patch_base_offset

Step = HeadraceError | Callable[[], Awaitable[None]] | None
"""Of a script: raise this, wait for this first, or go on as usual."""


@dataclass
class StoredRange:
    """One range as all of its replicas would hold it if they were complete."""

    stream_id: int
    index: int
    start: int
    replicas: list[str]
    end: int = -1
    epoch: int = -1
    batches: list[bytes] = field(default_factory=list)

    @property
    def next(self) -> int:
        return decode_header(self.batches[-1]).next_offset if self.batches else self.start

    def message(self) -> m.Range:
        nodes = tuple(
            m.ReplicaNode(data_node=m.DataNode(node_id=i, advertise_addr=name), is_primary=i == 0)
            for i, name in enumerate(self.replicas)
        )
        return m.Range(
            stream_id=self.stream_id,
            range_index=self.index,
            start_offset=self.start,
            end_offset=self.end,
            next_offset=self.next,
            replica_nodes=nodes,
            writer_epoch=self.epoch,
        )


class FakePlacement:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.script: dict[Code, deque[Step]] = {}
        self.calls: list[Code] = []
        self.preferred: list[int] = []  # of each seal

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        self.calls.append(code)
        await _follow(self.script, code)
        try:
            if isinstance(message, m.ListRangesRequest):
                return self._list(message)
            if isinstance(message, m.SealRangesRequest):
                return self._seal(message)
        except HeadraceError as error:
            raise error_of(status_of(error)) from error
        raise AssertionError(code)

    async def close(self) -> None:
        pass

    def _list(self, message: m.ListRangesRequest) -> Reply:
        results = []
        for criterion in message.range_criteria:
            ranges = self._cluster.streams.get(criterion.stream_id)
            results.append(
                m.ListRangesResult(
                    range_criteria=criterion,
                    ranges=tuple(r.message() for r in ranges or ()),
                    status=OK if ranges else status_of(NotFoundError()),
                )
            )
        return Reply(m.ListRangesResponse(list_responses=tuple(results), status=OK))

    def _seal(self, message: m.SealRangesRequest) -> Reply:
        (wanted,) = message.ranges
        self.preferred.append(wanted.preferred_node)
        last = self._cluster.streams[wanted.stream_id][-1]
        if wanted.writer_epoch < last.epoch:
            raise FencedError
        index = last.index if wanted.range_index < 0 else wanted.range_index
        if wanted.range_index < 0:
            last.epoch = wanted.writer_epoch
        elif index == last.index:
            last = self._cluster.seal(wanted.stream_id, wanted.writer_epoch)
        result = m.SealRangesResult(range=last.message(), status=OK)
        return Reply(m.SealRangesResponse(seal_responses=(result,), status=OK))


class FakeNode:
    def __init__(self, cluster: FakeCluster, address: str) -> None:
        self._cluster = cluster
        self.address = address
        self.script: dict[Code, deque[Step]] = {}
        self.down = False
        self.going_away = False  # refuses all calls
        self.leaving = False  # gets no new ranges
        self.committed: dict[tuple[int, int], int] = {}
        """Where it knows less than the primary."""
        self.ended: set[tuple[int, int]] = set()
        """Ranges that it leads no more, not knowing where they end."""
        self.frames: list[list[tuple[int, int]]] = []
        """Per APPEND: stream and range of its batches."""
        self.fetches: list[m.FetchRequest] = []
        self.headers: list[Buffer] = []
        """First piece of each APPEND: it belongs to the node from then on."""
        self.in_flight = self.in_flight_max = 0

    @property
    def takes_ranges(self) -> bool:
        return not (self.down or self.going_away or self.leaving)

    async def connect(self) -> FakeNode:
        self._cluster.dialed.append(self.address)
        if self.down:
            raise UnavailableError("connection refused", peer=self.address)
        return self

    async def close(self) -> None:
        pass

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        if self.down:
            raise UnavailableError("connection lost", peer=self.address)
        if self.going_away:
            raise UnavailableError("peer is going away", refused=True)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            if isinstance(message, m.AppendRequest):
                return await self._append(message, payload)
            await _follow(self.script, code)
            if isinstance(message, m.FetchRequest):
                self.fetches.append(message)
                return self._fetch(message)
            if isinstance(message, m.DescribeRangesRequest):
                return self._describe(message)
        finally:
            self.in_flight -= 1
        raise AssertionError(code)

    async def _append(self, message: m.AppendRequest, payload: Payload) -> Reply:
        """Takes the batches at once, answers after the script: an error there loses the answer."""
        self.frames.append([_key(info) for info in message.append_requests])
        self.headers.append(payload[0])
        reader = PieceReader(payload)
        results = []
        for info in message.append_requests:
            batch = bytearray(b"".join(reader.take(info.batch_length)))
            result = m.AppendResult(
                stream_id=_key(info)[0], request_index=info.request_index, status=OK
            )
            try:
                await _follow(self.script, Code.SYNC_RANGES)  # before it is stored
                result = replace(result, base_offset=self._store(info, batch))
            except HeadraceError as error:
                result = replace(result, status=status_of(error))
            results.append(result)
        await _follow(self.script, Code.APPEND)
        await asyncio.sleep(0)
        return Reply(m.AppendResponse(append_responses=tuple(results), status=OK))

    def _store(self, info: m.AppendInfo, batch: bytearray) -> int:
        stream_id, index = _key(info)
        range_ = self._cluster.range(stream_id, index)
        if self.address not in range_.replicas:
            raise RangeNotFoundError
        if self.address != range_.replicas[0]:
            raise NotPrimaryError
        if range_.end >= 0:
            raise SealedError
        if info.writer_epoch < range_.epoch:
            raise FencedError
        if info.expected_offset not in (-1, range_.next):
            raise UnexpectedOffsetError
        header = decode_header(batch)
        sequences = self._cluster.sequences.setdefault((stream_id, header.producer_id), {})
        if header.producer_id >= 0:
            stored = sequences.get(header.sequence + header.record_count)
            if stored is not None:
                return stored
            expected = max(sequences, default=header.sequence)
            if expected != header.sequence:
                raise InvalidArgumentError("out of order", producer_id=header.producer_id)
            sequences[header.sequence + header.record_count] = range_.next
        offset = range_.next
        patch_base_offset(batch, offset)
        range_.batches.append(bytes(batch))
        return offset

    def _fetch(self, message: m.FetchRequest) -> Reply:
        results = []
        payload: list[Buffer] = []
        for info in message.fetch_requests:
            result = m.FetchResult(
                stream_id=info.stream_id, request_index=info.request_index, status=OK
            )
            try:
                found = self._read(info)
                result = replace(result, batch_length=sum(map(len, found)))
                payload += found
            except HeadraceError as error:
                result = replace(result, status=status_of(error))
            results.append(result)
        return Reply(m.FetchResponse(fetch_responses=tuple(results), status=OK), payload)

    def _describe(self, message: m.DescribeRangesRequest) -> Reply:
        results = []
        for wanted in message.ranges:
            found = self._cluster.range(wanted.stream_id, wanted.range_index)
            result = m.DescribeRangeResult(
                stream_id=wanted.stream_id, status=status_of(RangeNotFoundError())
            )
            if (found.stream_id, found.index) in self.ended:
                result = replace(result, status=status_of(NotPrimaryError()))
            elif self.address in found.replicas:
                next_offset = self.committed.get((found.stream_id, found.index), found.next)
                range_ = replace(found.message(), next_offset=next_offset)
                result = replace(result, range=range_, status=OK)
            results.append(result)
        return Reply(m.DescribeRangesResponse(describe_responses=tuple(results), status=OK))

    def _find_time(self, info: m.FetchInfo) -> list[bytes]:
        """Through all ranges it holds, as a data node does."""
        for range_ in self._cluster.streams[info.stream_id]:
            for batch in range_.batches if self.address in range_.replicas else ():
                header = decode_header(batch)
                late = header.max_timestamp >= info.start_timestamp
                if late and header.next_offset > info.fetch_offset:
                    return [batch]
        return []

    def _read(self, info: m.FetchInfo) -> list[bytes]:
        if info.start_timestamp >= 0:
            return self._find_time(info)
        offset = info.fetch_offset
        ranges = [r for r in self._cluster.streams[info.stream_id] if self.address in r.replicas]
        found = next((r for r in reversed(ranges) if r.start <= offset), None)
        if found is None or (0 <= found.end <= offset):
            raise OffsetOutOfRangeError if found else RangeNotFoundError
        committed = self.committed.get((info.stream_id, found.index), found.next)
        if offset >= committed:
            if self.address != found.replicas[0]:
                raise NotPrimaryError
            if offset > committed:
                raise OffsetOverflowError
            return []
        batches = [b for b in found.batches if decode_header(b).next_offset > offset]
        batches = [b for b in batches if decode_header(b).next_offset <= committed]
        taken = batches[:1]
        for batch in batches[1:]:
            if sum(map(len, taken)) >= info.batch_max_bytes:
                break
            taken.append(batch)
        return taken


class FakeCluster:
    def __init__(self, *nodes: str) -> None:
        self.nodes = {name: FakeNode(self, name) for name in nodes}
        self.placement = FakePlacement(self)
        self.streams: dict[int, list[StoredRange]] = {}
        self.sequences: dict[tuple[int, int], dict[int, int]] = {}
        """(stream, producer) -> next sequence -> base offset; travels with every seal."""
        self.dialed: list[str] = []

    def create(self, stream_id: int, *replicas: str) -> StoredRange:
        first = StoredRange(stream_id, 0, 0, list(replicas or self.nodes))
        self.streams[stream_id] = [first]
        return first

    def seal(self, stream_id: int, epoch: int = -1) -> StoredRange:
        """End the open range where it is; the next one is led by a node that works."""
        last = self.streams[stream_id][-1]
        last.end = last.next
        names = [name for name, node in self.nodes.items() if node.takes_ranges]
        rotated = names[last.index + 1 :] + names[: last.index + 1]
        replicas = (rotated or names)[: len(self.streams[stream_id][0].replicas)]
        new = StoredRange(stream_id, last.index + 1, last.end, replicas, epoch=epoch)
        self.streams[stream_id].append(new)
        return new

    def range(self, stream_id: int, index: int) -> StoredRange:
        ranges = self.streams[stream_id]
        return ranges[index] if index >= 0 else ranges[-1]

    def put(self, stream_id: int, *bodies: Sequence[Buffer]) -> None:
        """Store batches in the open range."""
        range_ = self.streams[stream_id][-1]
        for pieces in bodies:
            batch = bytearray(b"".join(pieces))
            patch_base_offset(batch, range_.next)
            range_.batches.append(bytes(batch))

    def bodies(self, stream_id: int) -> list[bytes]:
        return [b[HEADER_BYTES:] for r in self.streams[stream_id] for b in r.batches]

    def client(self, runtime: Runtime, settings: ClientSettings | None = None) -> SbpClient:
        async def placement() -> FakePlacement:
            return self.placement

        return SbpClient(runtime, placement=placement, node=self._connect, settings=settings)

    def _connect(self, address: str) -> Connect:
        return self.nodes[address].connect


def _key(info: m.AppendInfo) -> tuple[int, int]:
    assert info.range is not None
    return info.range.stream_id, info.range.range_index


async def _follow(script: dict[Code, deque[Step]], code: Code) -> None:
    steps = script.get(code)
    step = steps.popleft() if steps else None
    if isinstance(step, HeadraceError):
        raise step
    if step is not None:
        await step()


async def hang() -> None:
    await asyncio.Event().wait()
