"""Client of placement manager and data nodes: metadata, appends with retries, long-poll fetches.

Metadata calls go to the placement manager and are repeated inside their deadline: all of them are
idempotent, except the creation of a stream without a name (which may then leave an unused stream
behind) and the acquisition of a lease (which may then skip an epoch).

The range cache of a stream is thrown away whenever a data node says that it no longer holds. A
plain append whose answer got lost is sent again and may be stored twice, unless its batch carries a
producer id and sequence. Streams with a writer epoch are written through `OwnedStream`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.client.channels import Connect, Link, Links, PieceReader, payload_bytes
from headrace.client.placement_links import PlacementLinks
from headrace.errors import (
    DeadlineError,
    NotFoundError,
    OffsetOutOfRangeError,
    OffsetOverflowError,
    RangeNotFoundError,
    RemoteProtocolError,
    StateError,
    ThrottledError,
    UnavailableError,
)
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header, split

T = TypeVar("T")
R = TypeVar("R", bound=m.Message)

REQUEST_TIMEOUT = 3.0
METADATA_TIMEOUT = 5.0
BACKOFF_MIN = 0.05
BACKOFF_MAX = 1.0
BATCH_BYTES_MAX = 12 << 20
"""Of an append: the batch must fit into one frame of a fetch's answer too, beside its header."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches, from the one that contains the offset asked for; none at the end."""

    pieces: list[memoryview]
    next_offset: int


class RangeMap:
    """The ranges of one stream by start offset. Empty sealed ranges are left out."""

    def __init__(self, ranges: Iterable[m.Range]) -> None:
        kept = [r for r in ranges if r.end_offset < 0 or r.end_offset > r.start_offset]
        self.ranges = sorted(kept, key=lambda r: r.range_index)
        self._starts = [r.start_offset for r in self.ranges]

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    def writable(self) -> m.Range | None:
        if self.ranges and self.ranges[-1].end_offset < 0:
            return self.ranges[-1]
        return None

    def containing(self, offset: int) -> m.Range | None:
        """The range that holds or will hold `offset`; None below all and past a sealed end."""
        position = bisect_right(self._starts, offset) - 1
        if position < 0:
            return None
        found = self.ranges[position]
        return found if found.end_offset < 0 or offset < found.end_offset else None

    def succeeded_by(self, writable: m.Range) -> RangeMap:
        """With the new writable range a seal returned; the one before it ends where it starts."""
        older = [
            replace(r, end_offset=writable.start_offset) if r.end_offset < 0 else r
            for r in self.ranges
            if r.range_index < writable.range_index
        ]
        return RangeMap([*older, writable])


def primary_address(range_: m.Range) -> str:
    for node in range_.replica_nodes:
        if node.is_primary and node.data_node is not None:
            return node.data_node.advertise_addr
    raise UnavailableError("range without a primary", stream_id=range_.stream_id)


class Backoff:
    """Pauses that double from 50 ms to 1 s, jittered, until a deadline."""

    def __init__(self, runtime: Runtime, deadline: float) -> None:
        self._runtime = runtime
        self._deadline = deadline
        self._delay = BACKOFF_MIN

    @property
    def left(self) -> float:
        return self._deadline - self._runtime.clock.monotonic()

    async def pause(self) -> bool:
        """False, at once, when the pause would pass the deadline."""
        delay = self._delay * (0.5 + self._runtime.random.uniform() / 2)
        self._delay = min(self._delay * 2, BACKOFF_MAX)
        if delay >= self.left:
            return False
        await self._runtime.clock.sleep(delay)
        return True


class SbpClient:
    """One per process is enough: it shares its channels and its range cache."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        placement: Connect | PlacementLinks,
        node: Callable[[str], Connect],
        client_id: str = "",
    ) -> None:
        self.runtime = runtime
        self.client_id = client_id
        self._placement = (
            placement if isinstance(placement, PlacementLinks) else PlacementLinks.single(placement)
        )
        self._nodes = Links(node)
        self._maps: dict[int, RangeMap] = {}

    async def close(self) -> None:
        await self._placement.close()
        await self._nodes.close()

    # Metadata

    async def create_stream(
        self,
        *,
        name: str = "",
        replica_nums: int = 1,
        retention_period_ms: int = 0,
        durability: m.Durability = m.Durability.SYNCED,
    ) -> m.Stream:
        """Create, or with a name find, a stream. NotEnoughNodesError while no data node lives."""
        wanted = m.Stream(
            replica_nums=replica_nums,
            retention_period_ms=retention_period_ms,
            name=name,
            durability=durability,
        )
        (stream,) = await self.create_streams([wanted])
        return stream

    async def create_streams(self, streams: Sequence[m.Stream]) -> list[m.Stream]:
        """All or the first error; those made before it stay (named ones are found again)."""

        async def attempt(timeout: float) -> list[m.Stream]:
            request = m.CreateStreamsRequest(timeout_ms=_ms(timeout), streams=tuple(streams))
            response = await self._ask(
                Code.CREATE_STREAMS, request, m.CreateStreamsResponse, timeout
            )
            made: list[m.Stream] = []
            for result in response.create_responses:
                raise_for_status(result.status)
                stream = _present(result.stream)
                if result.range is not None and result.range.range_index == 0:
                    self._maps[stream.stream_id] = RangeMap([result.range])
                made.append(stream)
            return made

        return await self._retrying(attempt, METADATA_TIMEOUT)

    async def describe_stream(self, stream_id: int) -> m.Stream:
        async def attempt(timeout: float) -> m.Stream:
            request = m.DescribeStreamsRequest(timeout_ms=_ms(timeout), stream_ids=(stream_id,))
            response = await self._ask(
                Code.DESCRIBE_STREAMS, request, m.DescribeStreamsResponse, timeout
            )
            result = _only(response.describe_responses)
            raise_for_status(result.status, stream_id=stream_id)
            return _present(result.stream)

        return await self._retrying(attempt, METADATA_TIMEOUT)

    async def update(
        self,
        stream_id: int,
        *,
        replica_nums: int = 0,
        retention_period_ms: int = -1,
        durability: int = -1,
    ) -> m.Stream:
        """Change what is given; replica count and durability hold for later ranges."""
        wanted = m.Stream(
            stream_id=stream_id,
            replica_nums=replica_nums,
            retention_period_ms=retention_period_ms,
            durability=durability,
        )

        async def attempt(timeout: float) -> m.Stream:
            request = m.UpdateStreamsRequest(timeout_ms=_ms(timeout), streams=(wanted,))
            response = await self._ask(
                Code.UPDATE_STREAMS, request, m.UpdateStreamsResponse, timeout
            )
            result = _only(response.update_responses)
            raise_for_status(result.status, stream_id=stream_id)
            return _present(result.stream)

        return await self._retrying(attempt, METADATA_TIMEOUT)

    async def delete_stream(self, stream_id: int) -> None:
        """Deleting a deleted stream succeeds."""

        async def attempt(timeout: float) -> None:
            request = m.DeleteStreamsRequest(
                timeout_ms=_ms(timeout), streams=(m.Stream(stream_id=stream_id),)
            )
            response = await self._ask(
                Code.DELETE_STREAMS, request, m.DeleteStreamsResponse, timeout
            )
            result = _only(response.delete_responses)
            raise_for_status(result.status, stream_id=stream_id)

        await self._retrying(attempt, METADATA_TIMEOUT)
        self.invalidate(stream_id)

    async def trim(self, stream_id: int, offset: int) -> m.Range:
        """Forget everything below `offset`; returns the smallest range that is left."""

        async def attempt(timeout: float) -> m.Range:
            request = m.TrimStreamsRequest(
                timeout_ms=_ms(timeout),
                trimmed_streams=(m.TrimmedStream(stream_id=stream_id, trim_offset=offset),),
            )
            response = await self._ask(Code.TRIM_STREAMS, request, m.TrimStreamsResponse, timeout)
            result = _only(response.trim_responses)
            raise_for_status(result.status, stream_id=stream_id, offset=offset)
            return _present(result.range)

        smallest = await self._retrying(attempt, METADATA_TIMEOUT)
        self.invalidate(stream_id)
        return smallest

    async def list_ranges(self, stream_id: int) -> list[m.Range]:
        """As the placement manager knows them now, in order."""

        async def attempt(timeout: float) -> list[m.Range]:
            request = m.ListRangesRequest(
                timeout_ms=_ms(timeout), range_criteria=(m.RangeCriteria(stream_id=stream_id),)
            )
            response = await self._ask(Code.LIST_RANGES, request, m.ListRangesResponse, timeout)
            ranges: list[m.Range] = []
            for result in response.list_responses:  # several when the answer was split
                raise_for_status(result.status, stream_id=stream_id)
                ranges.extend(result.ranges)
            return sorted(ranges, key=lambda r: r.range_index)

        ranges = await self._retrying(attempt, METADATA_TIMEOUT)
        self._maps[stream_id] = RangeMap(ranges)
        return ranges

    async def list_ranges_of(self, stream_ids: Sequence[int]) -> dict[int, list[m.Range]]:
        """Of many streams in one request; those that do not exist are left out."""

        async def attempt(timeout: float) -> dict[int, list[m.Range]]:
            criteria = tuple(m.RangeCriteria(stream_id=stream_id) for stream_id in stream_ids)
            request = m.ListRangesRequest(timeout_ms=_ms(timeout), range_criteria=criteria)
            response = await self._ask(Code.LIST_RANGES, request, m.ListRangesResponse, timeout)
            found: dict[int, list[m.Range]] = {}
            for result in response.list_responses:
                with suppress(NotFoundError):
                    raise_for_status(result.status)
                    criterion = _present(result.range_criteria)
                    found.setdefault(criterion.stream_id, []).extend(result.ranges)
            for stream_id, ranges in found.items():
                ranges.sort(key=lambda r: r.range_index)
                self._maps[stream_id] = RangeMap(ranges)
            return found

        return await self._retrying(attempt, METADATA_TIMEOUT)

    async def seal(self, stream_id: int, index: int, writer_epoch: int = -1) -> m.Range:
        """Seal a range and open the next one; returns the writable range.

        With index -1 and an epoch: open the stream for writing under that epoch, sealing only if
        the open range cannot go on. FencedError when the epoch is too low.
        """

        async def attempt(timeout: float) -> m.Range:
            wanted = m.RangeId(stream_id=stream_id, range_index=index, writer_epoch=writer_epoch)
            request = m.SealRangesRequest(timeout_ms=_ms(timeout), ranges=(wanted,))
            response = await self._ask(Code.SEAL_RANGES, request, m.SealRangesResponse, timeout)
            result = _only(response.seal_responses)
            raise_for_status(result.status, stream_id=stream_id, index=index, epoch=writer_epoch)
            return _present(result.range)

        writable = await self._retrying(attempt, METADATA_TIMEOUT)
        known = self._maps.get(stream_id)
        if known is not None:
            self._maps[stream_id] = known.succeeded_by(writable)
        return writable

    async def lease(
        self, name: str, holder: str, duration_ms: int, address: str = "", epoch: int = -1
    ) -> m.LeaseResponse:
        """Acquire (epoch -1) or renew (the epoch held). Look at `granted`."""
        return await self._lease(
            m.LeaseRequest(
                action=m.LeaseAction.ACQUIRE,
                name=name,
                holder=holder,
                duration_ms=duration_ms,
                address=address,
                epoch=epoch,
            )
        )

    async def release(self, name: str, holder: str, epoch: int) -> m.LeaseResponse:
        return await self._lease(
            m.LeaseRequest(action=m.LeaseAction.RELEASE, name=name, holder=holder, epoch=epoch)
        )

    async def query_lease(self, name: str) -> m.LeaseResponse:
        return await self._lease(m.LeaseRequest(action=m.LeaseAction.QUERY, name=name))

    async def _lease(self, request: m.LeaseRequest) -> m.LeaseResponse:
        async def attempt(timeout: float) -> m.LeaseResponse:
            return await self._ask(
                Code.LEASE, replace(request, timeout_ms=_ms(timeout)), m.LeaseResponse, timeout
            )

        return await self._retrying(attempt, METADATA_TIMEOUT)

    async def describe_cluster(self, *, count_ranges: bool = False) -> m.DescribeClusterResponse:
        """Data nodes and held leases; with `count_ranges` also how replicated the log is."""

        async def attempt(timeout: float) -> m.DescribeClusterResponse:
            request = m.DescribeClusterRequest(timeout_ms=_ms(timeout), count_ranges=count_ranges)
            return await self._ask(
                Code.DESCRIBE_CLUSTER, request, m.DescribeClusterResponse, timeout
            )

        return await self._retrying(attempt, METADATA_TIMEOUT)

    # Data nodes

    async def describe_range(
        self, stream_id: int, index: int, sync: bool = False
    ) -> m.DescribeRangeResult:
        """What the range's primary knows: next offset, segments; with `sync` all is durable."""

        async def attempt(timeout: float) -> m.DescribeRangeResult:
            ranges = (await self._map(stream_id)).ranges
            known = next((r for r in ranges if r.range_index == index), None)
            if known is None:
                self.invalidate(stream_id)
                raise RangeNotFoundError(stream_id=stream_id, index=index)
            return await self._describe(known, timeout, sync=sync)

        return await self._retrying(attempt, REQUEST_TIMEOUT)

    async def describe_ranges(
        self, ranges: Sequence[m.Range]
    ) -> list[m.DescribeRangeResult | None]:
        """What the primaries of many ranges know, one request per data node; None where a range
        is not known there any more."""
        by_node: dict[str, list[int]] = {}
        for position, range_ in enumerate(ranges):
            by_node.setdefault(primary_address(range_), []).append(position)
        results: list[m.DescribeRangeResult | None] = [None] * len(ranges)

        async def ask(address: str, positions: list[int]) -> None:
            async def attempt(timeout: float) -> m.DescribeRangesResponse:
                wanted = tuple(
                    m.RangeId(stream_id=ranges[p].stream_id, range_index=ranges[p].range_index)
                    for p in positions
                )
                request = m.DescribeRangesRequest(timeout_ms=_ms(timeout), ranges=wanted)
                link = self._nodes.to(address)
                reply = await link.call(Code.DESCRIBE_RANGES, request, timeout=timeout)
                return _typed(reply.message, m.DescribeRangesResponse)

            response = await self._retrying(attempt, METADATA_TIMEOUT)
            if len(response.describe_responses) != len(positions):
                raise RemoteProtocolError("one result per range expected")
            for position, result in zip(positions, response.describe_responses, strict=True):
                with suppress(NotFoundError, StateError):
                    raise_for_status(result.status)
                    results[position] = result

        await asyncio.gather(*(ask(*each) for each in by_node.items()))
        return results

    async def _describe(
        self, range_: m.Range, timeout: float, *, sync: bool = False
    ) -> m.DescribeRangeResult:
        wanted = m.RangeId(stream_id=range_.stream_id, range_index=range_.range_index)
        request = m.DescribeRangesRequest(timeout_ms=_ms(timeout), ranges=(wanted,), sync=sync)
        link = self._nodes.to(primary_address(range_))
        try:
            reply = await link.call(Code.DESCRIBE_RANGES, request, timeout=timeout)
            response = _typed(reply.message, m.DescribeRangesResponse)
            result = _only(response.describe_responses)
            raise_for_status(result.status, stream_id=range_.stream_id, index=range_.range_index)
        except StateError:
            self.invalidate(range_.stream_id)
            raise
        return result

    async def bounds(self, stream_id: int) -> tuple[int, int]:
        """The first offset kept and the offset after the last acknowledged record."""

        async def attempt(timeout: float) -> tuple[int, int]:
            ranges = await self.list_ranges(stream_id)
            if not ranges:
                raise RangeNotFoundError(stream_id=stream_id)
            last = ranges[-1]
            if last.end_offset >= 0:
                return ranges[0].start_offset, last.end_offset
            described = await self._describe(last, timeout)
            return ranges[0].start_offset, _present(described.range).next_offset

        return await self._retrying(attempt, METADATA_TIMEOUT)

    async def append(
        self,
        stream_id: int,
        pieces: Sequence[Buffer],
        *,
        writer_epoch: int = -1,
        expected_offset: int = -1,
        timeout: float = REQUEST_TIMEOUT,
    ) -> int:
        """Append one record batch (header bytearray, then its body); returns its base offset.

        The pieces belong to the log from now on. A plain append is retried on the next range until
        `timeout`; one with a writer epoch is tried once.
        """
        backoff = Backoff(self.runtime, self.runtime.clock.monotonic() + timeout)
        refreshed = False
        while True:
            range_ = await self._writable(stream_id)
            try:
                return await self.append_to(
                    range_,
                    pieces,
                    writer_epoch=writer_epoch,
                    expected_offset=expected_offset,
                    timeout=max(backoff.left, 0.001),
                )
            except StateError as error:
                if writer_epoch >= 0:
                    self.invalidate(stream_id)
                    raise
                if not error.retryable or not await backoff.pause():
                    raise
                if isinstance(error, RangeNotFoundError) and not refreshed:
                    refreshed = True
                    self.invalidate(stream_id)
                elif not isinstance(error, ThrottledError):
                    await self.seal(stream_id, range_.range_index)

    async def append_to(
        self,
        range_: m.Range,
        pieces: Sequence[Buffer],
        *,
        writer_epoch: int,
        expected_offset: int,
        timeout: float,
    ) -> int:
        """One attempt on one range."""
        link = self._nodes.to(primary_address(range_))
        request = append_request(
            range_,
            payload_bytes(pieces),
            writer_epoch=writer_epoch,
            expected_offset=expected_offset,
            timeout=timeout,
        )
        reply = await link.call(Code.APPEND, request, pieces, timeout=timeout)
        return appended_offset(reply.message)

    async def fetch(
        self,
        stream_id: int,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
    ) -> Fetched:
        """Batches from the one that contains `offset`, of one range; the next call goes on.

        At the end of the stream it waits up to `max_wait_ms` and then returns no pieces.
        OffsetOutOfRangeError below the start, OffsetOverflowError beyond the end.
        """
        clock = self.runtime.clock
        wait_until = clock.monotonic() + max_wait_ms / 1000
        backoff = Backoff(self.runtime, wait_until + REQUEST_TIMEOUT)
        fresh = False
        while True:
            if stream_id not in self._maps:
                fresh = True
            ranges = await self._map(stream_id)
            range_ = ranges.containing(offset)
            wait_ms = max(0, int((wait_until - clock.monotonic()) * 1000))
            try:
                if range_ is None:
                    raise OffsetOutOfRangeError(stream_id=stream_id, offset=offset)
                return await self._fetch_from(range_, offset, max_bytes, wait_ms, min_bytes)
            except (StateError, OffsetOutOfRangeError) as error:
                self.invalidate(stream_id)
                if not fresh:
                    fresh = True  # the answer may only mean that our ranges were old
                    continue
                if isinstance(error, OffsetOverflowError) or offset < ranges.start:
                    raise
                if isinstance(error, OffsetOutOfRangeError):
                    if not _at_end(ranges, offset):
                        raise
                    if not wait_ms:  # sealed, and the next range is still being made
                        return Fetched([], offset)
                elif not error.retryable:
                    raise
                if not await backoff.pause():
                    raise

    async def offset_at(self, stream_id: int, timestamp_ms: int) -> int:
        """Base offset of the first batch whose newest record reaches the time; else the end."""
        nodes_asked: set[str] = set()
        for range_ in await self.list_ranges(stream_id):
            address = primary_address(range_)
            if address in nodes_asked:
                continue  # a data node looks through all its ranges of the stream
            nodes_asked.add(address)
            try:
                fetched = await self._fetch_from(
                    range_, range_.start_offset, 1, 0, 1, start_timestamp=timestamp_ms
                )
            except OffsetOutOfRangeError:
                continue
            if fetched.pieces:
                return decode_header(fetched.pieces[0]).base_offset
        return (await self.bounds(stream_id))[1]

    async def _fetch_from(
        self,
        range_: m.Range,
        offset: int,
        max_bytes: int,
        wait_ms: int,
        min_bytes: int,
        *,
        start_timestamp: int = -1,
    ) -> Fetched:
        info = m.FetchInfo(
            stream_id=range_.stream_id,
            fetch_offset=offset,
            batch_max_bytes=max_bytes,
            start_timestamp=start_timestamp,
        )
        request = m.FetchRequest(max_wait_ms=wait_ms, min_bytes=min_bytes, fetch_requests=(info,))
        link = self._nodes.to(primary_address(range_))
        reply = await link.call(Code.FETCH, request, timeout=wait_ms / 1000 + REQUEST_TIMEOUT)
        response = _typed(reply.message, m.FetchResponse)
        reader = PieceReader(reply.payload)
        pieces: list[memoryview] = []
        for result in response.fetch_responses:  # several when the answer was split
            raise_for_status(result.status, stream_id=range_.stream_id, offset=offset)
            pieces.extend(memoryview(piece) for piece in reader.take(result.batch_length))
        return Fetched(pieces, end_of(pieces) if pieces else offset)

    # Routing

    def invalidate(self, stream_id: int) -> None:
        self._maps.pop(stream_id, None)

    def node(self, range_: m.Range) -> Link:
        """The link to the range's primary."""
        return self._nodes.to(primary_address(range_))

    async def _map(self, stream_id: int) -> RangeMap:
        known = self._maps.get(stream_id)
        if known is None:
            known = RangeMap(await self.list_ranges(stream_id))
        return known

    async def _writable(self, stream_id: int) -> m.Range:
        writable = (await self._map(stream_id)).writable()
        if writable is None:
            ranges = await self.list_ranges(stream_id)
            if not ranges:
                raise RangeNotFoundError(stream_id=stream_id)
            writable = ranges[-1]
            if writable.end_offset >= 0:
                writable = await self.seal(stream_id, writable.range_index)
        return writable

    async def _ask(self, code: Code, message: m.Message, response: type[R], timeout: float) -> R:
        reply = await self._placement.call(code, message, timeout=timeout)
        answer = _typed(reply.message, response)
        raise_for_status(getattr(answer, "status", None))
        return answer

    async def _retrying(self, attempt: Callable[[float], Awaitable[T]], timeout: float) -> T:
        backoff = Backoff(self.runtime, self.runtime.clock.monotonic() + timeout)
        while True:
            try:
                async with asyncio.timeout(max(backoff.left, 0.001)):
                    return await attempt(max(backoff.left, 0.001))
            except TimeoutError:
                raise DeadlineError("no answer in time", timeout=timeout) from None
            except StateError as error:
                if not error.retryable or not await backoff.pause():
                    raise


def append_request(
    range_: m.Range, length: int, *, writer_epoch: int, expected_offset: int, timeout: float
) -> m.AppendRequest:
    target = m.Range(stream_id=range_.stream_id, range_index=range_.range_index)
    info = m.AppendInfo(
        range=target,
        batch_length=length,
        writer_epoch=writer_epoch,
        expected_offset=expected_offset,
    )
    return m.AppendRequest(timeout_ms=_ms(timeout), append_requests=(info,))


def appended_offset(message: m.Message) -> int:
    """Base offset out of the answer to an APPEND of one batch."""
    response = _typed(message, m.AppendResponse)
    raise_for_status(response.status)
    result = _only(response.append_responses)
    raise_for_status(result.status, stream_id=result.stream_id)
    return result.base_offset


def end_of(pieces: Sequence[memoryview]) -> int:
    """The offset after the last record of the batches."""
    end = 0
    for header, _ in split(pieces[-1]):
        end = header.base_offset + header.record_count
    return end


def _at_end(ranges: RangeMap, offset: int) -> bool:
    last = ranges.ranges[-1] if ranges.ranges else None
    return last is not None and (last.end_offset < 0 or offset == last.end_offset)


def _ms(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _typed(message: m.Message, expected: type[R]) -> R:
    if not isinstance(message, expected):
        raise RemoteProtocolError(
            "unexpected answer", expected=expected.__name__, found=type(message).__name__
        )
    return message


def _present(value: T | None) -> T:
    if value is None:
        raise RemoteProtocolError("a result without its value")
    return value


def _only(results: Sequence[T]) -> T:
    if len(results) != 1:
        raise RemoteProtocolError("one result expected", found=len(results))
    return results[0]
