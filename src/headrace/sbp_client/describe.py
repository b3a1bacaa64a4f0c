"""What data nodes know of ranges: next offsets, segments."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headrace.concurrency.retry import retry
from headrace.errors import (
    DeadlineError,
    NotFoundError,
    RangeNotFoundError,
    RemoteProtocolError,
    StateError,
    UnavailableError,
)
from headrace.sbp_client.channels import ChannelPool
from headrace.sbp_client.metadata import MetadataClient
from headrace.sbp_client.ranges import (
    Replicas,
    milliseconds,
    only,
    present,
    primary_address,
    replica_addresses,
    typed,
)
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code


@dataclass(frozen=True, slots=True)
class Segment:
    """A file of a stream: offsets [base, end)."""

    base: int
    end: int
    bytes: int
    max_timestamp: int
    """Of its newest record, in milliseconds."""
    open: bool
    """It is still written to."""


class Describer:
    def __init__(self, client: MetadataClient, nodes: ChannelPool, replicas: Replicas) -> None:
        self._client = client
        self._nodes = nodes
        self._replicas = replicas

    async def describe_range(
        self, stream_id: int, index: int, *, sync: bool
    ) -> m.DescribeRangeResult:
        async def attempt(timeout: float) -> m.DescribeRangeResult:
            ranges = (await self._client.ranges(stream_id)).ranges
            known = next((r for r in ranges if r.range_index == index), None)
            if known is None:
                self._client.invalidate(stream_id)
                raise RangeNotFoundError(stream_id=stream_id, index=index)
            return await self._describe(known, timeout, sync=sync)

        settings = self._client.settings
        return await retry(self._client.runtime, attempt, settings.request_timeout_ms / 1000)

    async def segments(self, stream_id: int) -> list[Segment]:
        """The files of a stream, oldest first, as the data nodes that lead its ranges know them."""
        ranges = await self._client.list_ranges(stream_id)
        found = []
        for range_, told in zip(ranges, await self.describe_ranges(ranges), strict=True):
            known = told.segments if told is not None else ()
            for number, one in enumerate(known, 1):
                written = range_.end_offset < 0 and number == len(known)
                found.append(Segment(one.base, one.end, one.bytes, one.max_timestamp, written))
        return found

    async def describe_ranges(
        self, ranges: Sequence[m.Range]
    ) -> list[m.DescribeRangeResult | None]:
        by_node: dict[str, list[int]] = {}
        for position, range_ in enumerate(ranges):
            by_node.setdefault(self._whom(range_)[0], []).append(position)
        results: list[m.DescribeRangeResult | None] = [None] * len(ranges)

        async def ask(address: str, positions: list[int]) -> None:
            for position, result in zip(
                positions,
                await self._ask_many(address, [ranges[p] for p in positions]),
                strict=True,
            ):
                results[position] = result

        await asyncio.gather(*(ask(*each) for each in by_node.items()))
        return results

    async def _ask_many(
        self, address: str, ranges: Sequence[m.Range]
    ) -> list[m.DescribeRangeResult | None]:
        wanted = tuple(m.RangeId(stream_id=r.stream_id, range_index=r.range_index) for r in ranges)
        try:
            timeout = self._client.settings.request_timeout_ms / 1000
            response = await self._ask(address, wanted, timeout, sync=False)
        except (UnavailableError, DeadlineError):
            self._replicas.suspect(address)
            return await asyncio.gather(*(self._describe_or_none(r) for r in ranges))
        if len(response.describe_responses) != len(ranges):
            raise RemoteProtocolError("one result per range expected")
        return await asyncio.gather(
            *(
                self._checked(*each)
                for each in zip(ranges, response.describe_responses, strict=True)
            )
        )

    async def _checked(
        self, range_: m.Range, result: m.DescribeRangeResult
    ) -> m.DescribeRangeResult | None:
        """A range that was sealed a moment ago: its primary leads it no more and has not heard yet
        where it ends. The others may have."""
        try:
            raise_for_status(result.status)
        except (NotFoundError, StateError):
            if range_.end_offset < 0 or len(self._whom(range_)) == 1:
                return None
            with suppress(NotFoundError, StateError):
                timeout = self._client.settings.request_timeout_ms / 1000
                return await self._describe(range_, timeout)
            return None
        return result

    async def _describe_or_none(self, range_: m.Range) -> m.DescribeRangeResult | None:
        async def attempt(timeout: float) -> m.DescribeRangeResult | None:
            with suppress(NotFoundError, RangeNotFoundError):
                return await self._describe(range_, timeout)
            return None

        timeout = self._client.settings.metadata_timeout_ms / 1000
        return await retry(self._client.runtime, attempt, timeout)

    async def bounds(self, stream_id: int) -> tuple[int, int]:
        async def attempt(timeout: float) -> tuple[int, int]:
            ranges = await self._client.list_ranges(stream_id)
            if not ranges:
                raise RangeNotFoundError(stream_id=stream_id)
            last = ranges[-1]
            if last.end_offset >= 0:
                return ranges[0].start_offset, last.end_offset
            described = await self._describe(last, timeout)
            return ranges[0].start_offset, present(described.range).next_offset

        timeout = self._client.settings.metadata_timeout_ms / 1000
        return await retry(self._client.runtime, attempt, timeout)

    def _whom(self, range_: m.Range) -> list[str]:
        """Only the primary knows where an open range ends; of a sealed one all know the same."""
        if range_.end_offset < 0:
            return [primary_address(range_)]
        addresses = replica_addresses(range_)
        if not addresses:
            raise UnavailableError("range without replicas", stream_id=range_.stream_id)
        return sorted(addresses, key=self._replicas.is_suspect)

    async def _describe(
        self, range_: m.Range, timeout: float, *, sync: bool = False
    ) -> m.DescribeRangeResult:
        wanted = (m.RangeId(stream_id=range_.stream_id, range_index=range_.range_index),)
        errors: list[StateError] = []
        for address in self._whom(range_):
            try:
                response = await self._ask(address, wanted, timeout, sync=sync)
                result = only(response.describe_responses)
                raise_for_status(
                    result.status, stream_id=range_.stream_id, index=range_.range_index
                )
                wanted_end = range_.end_offset if range_.held_offset < 0 else range_.held_offset
                if present(result.range).next_offset < wanted_end:
                    raise RangeNotFoundError("not all of the range is here", peer=address)
                return result
            except StateError as error:
                if isinstance(error, UnavailableError | DeadlineError):
                    self._replicas.suspect(address)
                errors.append(error)
        self._client.invalidate(range_.stream_id)
        raise errors[-1]

    async def _ask(
        self, address: str, ranges: tuple[m.RangeId, ...], timeout: float, *, sync: bool
    ) -> m.DescribeRangesResponse:
        request = m.DescribeRangesRequest(
            timeout_ms=milliseconds(timeout), ranges=ranges, sync=sync
        )
        reply = await self._nodes.to(address).call(Code.DESCRIBE_RANGES, request, timeout=timeout)
        return typed(reply.message, m.DescribeRangesResponse)
