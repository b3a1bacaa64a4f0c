"""A placement manager and a data node in memory, behind the real `SbpClient`.

It keeps the rules a broker leans on: epochs fence, owned appends state their offset, a sealed range
takes nothing more, reads see acknowledged batches only. `cut` loses a tail as a power cut would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.errors import (
    FencedError,
    HeadraceError,
    NotFoundError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    SealedError,
    UnexpectedOffsetError,
)
from headrace.net.sbp_routes import Payload, Reply
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.client import SbpClient
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import NotPrimaryError, status_of
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header, verify

ADDRESS = "node:1"
NODES = (m.ReplicaNode(m.DataNode(1, ADDRESS), is_primary=True),)


@dataclass
class FakeRange:
    index: int
    start: int
    epoch: int
    end: int = -1
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)  # base, next, bytes

    @property
    def next_offset(self) -> int:
        return self.batches[-1][1] if self.batches else self.start


@dataclass
class FakeStream:
    id: int
    name: str
    ranges: list[FakeRange] = field(default_factory=list)
    start: int = 0
    syncs: int = 0
    replicas: int = 1
    durability: int = m.Durability.SYNCED

    def message(self, range_: FakeRange) -> m.Range:
        return m.Range(
            stream_id=self.id,
            range_index=range_.index,
            start_offset=max(range_.start, self.start),
            end_offset=range_.end,
            next_offset=range_.next_offset,
            replica_nodes=NODES,
            writer_epoch=range_.epoch,
        )


class FakeCluster:
    """A `Channel` to both roles."""

    def __init__(self, *, segment_batches: int = 1000, nodes: int = 1) -> None:
        self.nodes = nodes
        self.streams: dict[int, FakeStream] = {}
        self.names: dict[str, int] = {}
        self.leases: dict[str, tuple[str, int]] = {}
        self.addresses: dict[str, str] = {}
        self.appends = 0
        self.fetches = 0
        self.describes = 0
        self.describes_refused = 0
        """So many more: the node leads the range no more, not knowing where it ends."""
        self.segment_batches = segment_batches
        self.gate = asyncio.Event()
        self.gate.set()
        self._next_stream = 100

    def client(self, runtime: Runtime) -> SbpClient:
        async def connect() -> FakeCluster:
            return self

        return SbpClient(runtime, placement=connect, node=lambda _: connect, client_id="test")

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        handler = getattr(self, f"_{code.name.lower()}")
        if code is Code.APPEND:
            return await self._append(message, payload)
        await asyncio.sleep(0)
        reply = handler(message)
        return reply if isinstance(reply, Reply) else Reply(reply)

    async def close(self) -> None:
        return None

    def stream(self, stream_id: int) -> FakeStream:
        if stream_id not in self.streams:
            raise NotFoundError(stream_id=stream_id)
        return self.streams[stream_id]

    def named(self, name: str) -> FakeStream:
        return self.streams[self.names[name]]

    def cut(self, name: str, batches: int) -> None:
        """Forget the newest batches of the open range."""
        del self.named(name).ranges[-1].batches[-batches:]

    # -- placement manager

    def _create_streams(self, request: m.CreateStreamsRequest) -> m.Message:
        results = []
        for wanted in request.streams:
            if wanted.name not in self.names:
                stream = FakeStream(self._next_stream, wanted.name, [FakeRange(0, 0, -1)])
                stream.replicas = wanted.replica_nums
                stream.durability = wanted.durability
                self.streams[stream.id] = stream
                self.names[wanted.name] = stream.id
                self._next_stream += 1
            stream = self.named(wanted.name)
            results.append(
                m.CreateStreamResult(stream=replace(wanted, stream_id=stream.id), status=m.OK)
            )
        return m.CreateStreamsResponse(create_responses=tuple(results), status=m.OK)

    def _describe_streams(self, request: m.DescribeStreamsRequest) -> m.Message:
        (stream_id,) = request.stream_ids
        stream = self.stream(stream_id)
        found = m.Stream(stream_id, replica_nums=stream.replicas, name=stream.name)
        result = m.DescribeStreamResult(stream=found, status=m.OK)
        return m.DescribeStreamsResponse(describe_responses=(result,), status=m.OK)

    def _update_streams(self, request: m.UpdateStreamsRequest) -> m.Message:
        (wanted,) = request.streams
        self.stream(wanted.stream_id).replicas = wanted.replica_nums
        result = m.UpdateStreamResult(stream=wanted, status=m.OK)
        return m.UpdateStreamsResponse(update_responses=(result,), status=m.OK)

    def _describe_cluster(self, request: m.DescribeClusterRequest) -> m.Message:
        nodes = tuple(
            m.NodeInfo(m.DataNode(number, f"node:{number}"), is_alive=True)
            for number in range(1, self.nodes + 1)
        )
        leases = tuple(
            m.LeaseInfo(name, holder, self.addresses.get(name, ""), epoch)
            for name, (holder, epoch) in self.leases.items()
        )
        return m.DescribeClusterResponse(nodes=nodes, leases=leases, status=m.OK)

    def _delete_streams(self, request: m.DeleteStreamsRequest) -> m.Message:
        for wanted in request.streams:
            stream = self.streams.pop(wanted.stream_id, None)
            if stream is not None:
                del self.names[stream.name]
        done = m.DeleteStreamResult(status=m.OK)
        return m.DeleteStreamsResponse(delete_responses=(done,), status=m.OK)

    def _list_ranges(self, request: m.ListRangesRequest) -> m.Message:
        results = []
        for criteria in request.range_criteria:
            try:
                stream = self.stream(criteria.stream_id)
            except NotFoundError as error:
                results.append(m.ListRangesResult(criteria, (), status_of(error)))
                continue
            kept = [r for r in stream.ranges if r.end < 0 or r.end > stream.start]
            ranges = tuple(stream.message(r) for r in kept)
            results.append(m.ListRangesResult(criteria, ranges, m.OK))
        return m.ListRangesResponse(list_responses=tuple(results), status=m.OK)

    def _seal_ranges(self, request: m.SealRangesRequest) -> m.Message:
        (wanted,) = request.ranges
        stream = self.stream(wanted.stream_id)
        last = stream.ranges[-1]
        if wanted.writer_epoch < last.epoch:
            raise FencedError(stream_id=stream.id)
        if wanted.range_index == -1 or (last.epoch == -1 and not last.batches):
            last.epoch = wanted.writer_epoch
        elif wanted.range_index == last.index:
            last.end = last.next_offset
            stream.ranges.append(FakeRange(last.index + 1, last.end, wanted.writer_epoch))
        result = m.SealRangesResult(range=stream.message(stream.ranges[-1]), status=m.OK)
        return m.SealRangesResponse(seal_responses=(result,), status=m.OK)

    def _trim_streams(self, request: m.TrimStreamsRequest) -> m.Message:
        (trimmed,) = request.trimmed_streams
        stream = self.stream(trimmed.stream_id)
        stream.start = max(stream.start, trimmed.trim_offset)
        left = next(r for r in stream.ranges if r.end < 0 or r.end > stream.start)
        result = m.TrimStreamResult(range=stream.message(left), status=m.OK)
        return m.TrimStreamsResponse(trim_responses=(result,), status=m.OK)

    def _lease(self, request: m.LeaseRequest) -> m.Message:
        holder, epoch = self.leases.get(request.name, ("", 0))
        if request.action == m.LeaseAction.RELEASE:
            if holder == request.holder:
                self.leases[request.name] = ("", epoch)
            return m.LeaseResponse(status=m.OK)
        if holder not in ("", request.holder):
            return m.LeaseResponse(holder=holder, epoch=epoch, remaining_ms=50, status=m.OK)
        if holder != request.holder:
            epoch += 1
        self.leases[request.name] = (request.holder, epoch)
        self.addresses[request.name] = request.address
        return m.LeaseResponse(granted=True, epoch=epoch, holder=request.holder, status=m.OK)

    # -- data node

    def _describe_ranges(self, request: m.DescribeRangesRequest) -> m.Message:
        results = tuple(self._describe(wanted, sync=request.sync) for wanted in request.ranges)
        return m.DescribeRangesResponse(describe_responses=results, status=m.OK)

    def _describe(self, wanted: m.RangeId, *, sync: bool) -> m.DescribeRangeResult:
        self.describes += 1
        if self.describes_refused:
            self.describes_refused -= 1
            return m.DescribeRangeResult(wanted.stream_id, status=status_of(NotPrimaryError()))
        stream = self.stream(wanted.stream_id)
        range_ = stream.ranges[wanted.range_index]
        stream.syncs += sync
        kept = [b for b in range_.batches if b[1] > stream.start]
        segments = []
        for at in range(0, len(kept), self.segment_batches):
            group = kept[at : at + self.segment_batches]
            newest = decode_header(group[-1][2]).max_timestamp
            size = sum(len(b[2]) for b in group)
            segments.append(m.SegmentInfo(group[0][0], group[-1][1], size, newest))
        return m.DescribeRangeResult(
            stream_id=stream.id,
            range=stream.message(range_),
            status=m.OK,
            segments=tuple(segments),
        )

    async def _append(self, request: Any, payload: Sequence[Buffer]) -> Reply:
        (info,) = request.append_requests
        try:
            base = self._store(info, payload)
            status = m.OK
        except HeadraceError as error:
            base, status = -1, status_of(error)
        await asyncio.sleep(0)
        await self.gate.wait()
        result = m.AppendResult(info.range.stream_id, 0, base, 0, status)
        return Reply(m.AppendResponse(append_responses=(result,), status=m.OK))

    def _store(self, info: m.AppendInfo, payload: Sequence[Buffer]) -> int:
        assert info.range is not None
        stream = self.stream(info.range.stream_id)
        range_ = stream.ranges[info.range.range_index]
        if info.writer_epoch < stream.ranges[-1].epoch:
            raise FencedError(stream_id=stream.id)
        if range_.end >= 0:
            raise SealedError(stream_id=stream.id)
        header = verify(payload[0], payload[1:])
        if info.expected_offset != range_.next_offset or header.base_offset != info.expected_offset:
            raise UnexpectedOffsetError(expected=range_.next_offset, found=info.expected_offset)
        self.appends += 1
        range_.batches.append((header.base_offset, header.next_offset, b"".join(payload)))
        return header.base_offset

    def _fetch(self, request: m.FetchRequest) -> Reply:
        (info,) = request.fetch_requests
        self.fetches += 1
        stream = self.stream(info.stream_id)
        pieces: list[memoryview] = []
        offset = info.fetch_offset
        size = 0
        try:
            for _, _, data in self._from(stream, info, offset):
                if size and size + len(data) > info.batch_max_bytes:
                    break
                pieces.append(memoryview(data))
                size += len(data)
            status = m.OK
        except HeadraceError as error:
            status = status_of(error)
        result = m.FetchResult(stream.id, 0, size, status)
        return Reply(m.FetchResponse(fetch_responses=(result,), status=m.OK), pieces)

    def _from(
        self, stream: FakeStream, info: m.FetchInfo, offset: int
    ) -> list[tuple[int, int, bytes]]:
        if info.start_timestamp >= 0:
            every = [b for r in stream.ranges for b in r.batches if b[1] > stream.start]
            return [b for b in every if decode_header(b[2]).max_timestamp >= info.start_timestamp]
        if offset < stream.start:
            raise OffsetOutOfRangeError(offset=offset)
        for range_ in stream.ranges:
            if range_.start <= offset and (range_.end < 0 or offset < range_.end):
                if offset > range_.next_offset:
                    raise OffsetOverflowError(offset=offset)
                return [b for b in range_.batches if b[1] > offset]
        raise RangeNotFoundError(stream_id=stream.id)
