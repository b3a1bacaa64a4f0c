"""Client of placement managers and data nodes: metadata, appends with retries, long-poll fetches.

The range cache of a stream is thrown away whenever a data node says that it no longer holds. A
plain append whose answer got lost is sent again and may be stored twice, unless its batch carries a
producer id and sequence, as `StreamProducer` sees to. Streams with a writer epoch are written
through `OwnedStream`.

`ManyFetcher` fetches from many streams with one request per data node, results by request_index. A
stream that fails there is fetched by itself, with everything `Fetcher` does about replicas.

A writer whose range takes no more goes on through `succeed`: seal-and-new at the placement manager,
and a channel to the primary of the new range. Sealing is idempotent: whoever repeats it, or comes
second, gets the range that is writable now. A new range whose primary cannot be reached is sealed
in its turn: its node may have died just then. That the new range starts behind a batch does not
mean that the batch is acknowledged: it may be on one disk alone. `wait_held` tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.concurrency.retry import Backoff
from headrace.config.process import ClientSettings
from headrace.errors import (
    DeadlineError,
    DiskFullError,
    HeadraceError,
    RangeNotFoundError,
    StateError,
    ThrottledError,
    UnavailableError,
)
from headrace.net.sbp_channel import Channel
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import ChannelPool, Connect, PlacementChannel, ReconnectingChannel
from headrace.sbp_client.describe import Describer, Segment
from headrace.sbp_client.fetch import Fetcher, LocalReads
from headrace.sbp_client.metadata import MetadataClient
from headrace.sbp_client.ranges import (
    BATCH_BYTES_MAX,
    Fetched,
    RangeMap,
    Replicas,
    Want,
    append_request,
    appended_offset,
    are_held,
    checked,
    primary_address,
)
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.messages import Range
from headrace.wire.sbp.opcodes import Code


class ManyFetcher:
    def __init__(self, client: MetadataClient, fetcher: Fetcher, replicas: Replicas) -> None:
        self._client = client
        self._fetcher = fetcher
        self._replicas = replicas

    async def fetch_many(
        self, wants: Sequence[Want], *, max_wait_ms: int, min_bytes: int
    ) -> list[Fetched | HeadraceError | None]:
        missing = [w.stream_id for w in wants if self._client.known_ranges.get(w.stream_id) is None]
        if missing:
            await self._client.list_ranges_of(list(dict.fromkeys(missing)))
        results: list[Fetched | HeadraceError | None] = [None] * len(wants)
        groups, alone = self._by_node(wants)
        work = [
            asyncio.ensure_future(self._fetch_group(*each, wants, results, max_wait_ms, min_bytes))
            for each in groups.items()
        ]
        work += [asyncio.ensure_future(self._fetch_alone(p, wants[p], results)) for p in alone]
        waiting = work
        try:
            while waiting and _bytes_of(results) < min_bytes:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                waiting = [task for task in waiting if not task.done()]
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        for task in work:
            if not task.cancelled():
                task.result()
        return results

    def _by_node(self, wants: Sequence[Want]) -> tuple[dict[str, list[int]], list[int]]:
        """Positions by data node, and those whose ranges must be looked up first."""
        groups: dict[str, list[int]] = {}
        alone: list[int] = []
        for position, want in enumerate(wants):
            ranges = self._client.known_ranges.get(want.stream_id)
            range_ = ranges.containing(want.offset) if ranges is not None else None
            addresses = self._replicas.order(range_) if range_ is not None else []
            if addresses:
                groups.setdefault(addresses[0], []).append(position)
            else:
                alone.append(position)
        return groups, alone

    async def _fetch_group(
        self,
        address: str,
        positions: list[int],
        wants: Sequence[Want],
        results: list[Fetched | HeadraceError | None],
        max_wait_ms: int,
        min_bytes: int,
    ) -> None:
        infos = [
            m.FetchInfo(
                stream_id=wants[p].stream_id,
                request_index=index,
                fetch_offset=wants[p].offset,
                batch_max_bytes=wants[p].max_bytes,
            )
            for index, p in enumerate(positions)
        ]
        found: Sequence[list[memoryview] | HeadraceError]
        try:
            found = await self._fetcher.ask(address, infos, max_wait_ms, min_bytes)
        except HeadraceError as error:
            if isinstance(error, UnavailableError | DeadlineError):
                self._replicas.suspect(address)
            found = [error] * len(positions)
        again: list[int] = []
        for position, pieces in zip(positions, found, strict=True):
            want = wants[position]
            ranges = self._client.known_ranges.get(want.stream_id)
            range_ = ranges.containing(want.offset) if ranges is not None else None
            try:
                if isinstance(pieces, HeadraceError):
                    raise pieces
                if range_ is None:
                    raise RangeNotFoundError(stream_id=want.stream_id, offset=want.offset)
                results[position] = checked(pieces, range_, want.offset, address)
            except HeadraceError:
                again.append(position)
        # One by one, with everything `fetch` does about replicas that fail.
        await asyncio.gather(*(self._fetch_alone(p, wants[p], results) for p in again))

    async def _fetch_alone(
        self, position: int, want: Want, results: list[Fetched | HeadraceError | None]
    ) -> None:
        try:
            results[position] = await self._fetcher.fetch(want, max_wait_ms=0, min_bytes=1)
        except HeadraceError as error:
            results[position] = error


def _bytes_of(results: Sequence[Fetched | HeadraceError | None]) -> int:
    return sum(
        len(piece) for each in results if isinstance(each, Fetched) for piece in each.pieces
    ) + sum(isinstance(each, HeadraceError) for each in results)


__all__ = ["BATCH_BYTES_MAX", "Fetched", "RangeMap", "SbpClient", "Want"]


class SbpClient(MetadataClient):
    """One per process is enough: it shares its channels and its range cache."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        placement: Connect | PlacementChannel,
        node: Callable[[str], Connect],
        client_id: str = "",
        settings: ClientSettings | None = None,
    ) -> None:
        settings = settings or ClientSettings()
        if not isinstance(placement, PlacementChannel):
            placement = PlacementChannel.single(placement)
        super().__init__(runtime, placement, settings)
        self.client_id = client_id
        self.nodes = ChannelPool(node)
        self.replicas = Replicas(
            runtime.clock,
            spread=runtime.random.below(1 << 16),
            suspect_seconds=settings.suspect_ms / 1000,
        )
        self._local = LocalReads(runtime)
        self.fetcher = Fetcher(self, self.nodes, self.replicas, self._local)
        self._many = ManyFetcher(self, self.fetcher, self.replicas)
        self._describer = Describer(self, self.nodes, self.replicas)

    async def close(self) -> None:
        await self.placement.close()
        await self.nodes.close()
        await self._local.close()

    # Data nodes

    def node(self, range_: m.Range) -> ReconnectingChannel:
        """The channel to the range's primary."""
        return self.nodes.to(primary_address(range_))

    async def describe_range(
        self, stream_id: int, index: int, sync: bool = False
    ) -> m.DescribeRangeResult:
        """What the range's primary knows: next offset, segments; with `sync` all is durable."""
        return await self._describer.describe_range(stream_id, index, sync=sync)

    async def describe_ranges(
        self, ranges: Sequence[m.Range]
    ) -> list[m.DescribeRangeResult | None]:
        """What data nodes know of many ranges, one request per node; None where a range is not
        known there any more."""
        return await self._describer.describe_ranges(ranges)

    async def segments(self, stream_id: int) -> list[Segment]:
        """The files of a stream, oldest first, without those that were trimmed."""
        return await self._describer.segments(stream_id)

    async def quarantined(self, address: str) -> list[m.Range]:
        """What a data node keeps aside because no placement manager knows of it."""
        request = m.ListRangesRequest(range_criteria=(m.RangeCriteria(quarantined=True),))
        reply = await self.nodes.to(address).call(Code.LIST_RANGES, request)
        assert isinstance(reply.message, m.ListRangesResponse)
        raise_for_status(reply.message.status)
        return [one for result in reply.message.list_responses for one in result.ranges]

    async def bounds(self, stream_id: int) -> tuple[int, int]:
        """The first offset kept and the offset after the last acknowledged record."""
        return await self._describer.bounds(stream_id)

    async def append(
        self,
        stream_id: int,
        pieces: Sequence[Buffer],
        *,
        writer_epoch: int = -1,
        expected_offset: int = -1,
        timeout: float | None = None,
    ) -> int:
        """Append one record batch (header bytearray, then its body); returns its base offset.

        The pieces belong to the log from now on. A plain append is retried on the next range until
        `timeout` seconds have passed; one with a writer epoch is tried once.
        """
        seconds = self.settings.request_timeout_ms / 1000 if timeout is None else timeout
        backoff = Backoff(self.runtime, self.runtime.clock.monotonic() + seconds)
        refreshed = False
        while True:
            range_ = await self.writable(stream_id)
            try:
                return await self.append_to(
                    range_,
                    pieces,
                    writer_epoch=writer_epoch,
                    expected_offset=expected_offset,
                    timeout=max(backoff.left, 0.001),
                )
            except (StateError, DiskFullError) as error:
                if writer_epoch >= 0:
                    self.invalidate(stream_id)
                    raise
                # A full disk is its node's: the next range is placed on another one.
                passes = error.retryable or isinstance(error, DiskFullError)
                if not passes or not await backoff.pause():
                    raise
                if isinstance(error, RangeNotFoundError) and not refreshed:
                    refreshed = True
                    self.invalidate(stream_id)
                elif not isinstance(error, ThrottledError):
                    try:
                        await self.seal(stream_id, range_.range_index, timeout=backoff.left)
                    except DiskFullError:
                        pass  # the next node's: that range is left too
                    except DeadlineError:
                        raise error from None  # why it had to be left
                # In this process the first header may still wait to be written, with its offset.
                pieces = [bytearray(pieces[0]), *pieces[1:]]

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
        request = append_request(
            range_,
            sum(map(len, pieces)),
            writer_epoch=writer_epoch,
            expected_offset=expected_offset,
            timeout=timeout,
        )
        reply = await self.node(range_).call(Code.APPEND, request, pieces, timeout=timeout)
        return appended_offset(reply.message)

    async def fetch(
        self,
        stream_id: int,
        offset: int,
        *,
        max_bytes: int,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        local: bool = False,
        check_end: bool = True,
    ) -> Fetched:
        """Batches from the one that contains `offset`, of one range; the next call goes on.

        With `local` they may come out of the node's files, where those are on this machine.
        At the end of the stream it waits up to `max_wait_ms` and then returns no pieces. Without
        `check_end` that may be the end of a range whose primary was cut off: the caller looks up
        the ranges by itself, and is not kept waiting while no placement manager answers.
        OffsetOutOfRangeError below the start, OffsetOverflowError beyond the end.
        """
        want = Want(stream_id, offset, max_bytes, local, check_end)
        return await self.fetcher.fetch(want, max_wait_ms=max_wait_ms, min_bytes=min_bytes)

    async def fetch_many(
        self, wants: Sequence[Want], *, max_wait_ms: int = 0, min_bytes: int = 1
    ) -> list[Fetched | HeadraceError | None]:
        """Fetch from many streams, one request per data node, results in the order of `wants`.

        Returns when `min_bytes` are there over all of them, one failed, or `max_wait_ms` is over.
        None says that a data node had not answered by then: nothing is known of that stream.
        """
        return await self._many.fetch_many(wants, max_wait_ms=max_wait_ms, min_bytes=min_bytes)

    async def offset_at(self, stream_id: int, timestamp_ms: int) -> int:
        """Base offset of the first batch whose newest record reaches the time; else the end."""
        found = await self.fetcher.offset_at(stream_id, timestamp_ms)
        return (await self.bounds(stream_id))[1] if found is None else found


CONNECTS_MAX = 2  # to a new primary, before its range is sealed too


async def succeed(
    client: SbpClient, range_: Range, *, epoch: int, backoff: Backoff, preferred_node: int = -1
) -> tuple[Range, Channel]:
    """The range after `range_` and a channel to its primary. Tries until `backoff` is over.

    `preferred_node` leads that range if it can; where it cannot be reached then, any other does.
    FencedError, at once, when a higher epoch has the stream.
    """
    current = range_
    connects = CONNECTS_MAX
    cause: HeadraceError = DeadlineError("no range to go on in", stream_id=range_.stream_id)
    while True:
        try:
            async with asyncio.timeout(max(backoff.left, 0.001)):
                if connects >= CONNECTS_MAX:
                    current = await client.seal(
                        current.stream_id,
                        current.range_index,
                        epoch,
                        preferred_node=preferred_node if current is range_ else -1,
                    )
                    connects = 0
                connects += 1
                return current, await connect(client, current)
        except TimeoutError:
            raise cause from None
        except (StateError, DiskFullError) as error:
            cause = error
            # The disk is that of a node, and the next one may have room.
            passes = error.retryable or isinstance(error, DiskFullError)
            if not passes or not await backoff.pause():
                raise


async def wait_held(
    client: SbpClient, stream_id: int, *, start: int, end: int, backoff: Backoff
) -> None:
    """Wait until as many disks hold [start, end) of sealed ranges as an acknowledgement takes.

    DeadlineError when that is not known in time: they may be stored, and may be lost yet.
    StorageError when they were lost, and given up.
    """
    cause: HeadraceError = DeadlineError(
        "stored on fewer disks than promised so far: the outcome is unknown",
        stream_id=stream_id,
        offset=start,
    )
    while True:
        try:
            async with asyncio.timeout(max(backoff.left, 0.001)):
                ranges = await client.list_ranges(stream_id)
        except TimeoutError:
            raise cause from None
        except StateError as error:
            if not error.retryable or not await backoff.pause():
                raise
            continue
        if are_held(ranges, start, end):
            return
        if not await backoff.pause():
            raise cause


async def connect(client: SbpClient, range_: Range) -> Channel:
    """A channel to the range's primary, in the time of one request."""
    return await client.node(range_).channel(timeout=client.settings.request_timeout_ms / 1000)
