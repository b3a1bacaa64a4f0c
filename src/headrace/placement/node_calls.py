"""What the placement manager says to data nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.client.channels import Connect, Links
from headrace.errors import RemoteProtocolError
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code

R = TypeVar("R", bound=m.Message)


class NodeCalls:
    """Calls by address; errors leave as the classes their status stands for."""

    def __init__(self, connect_to: Callable[[str], Connect], *, timeout: float) -> None:
        self._links = Links(connect_to)
        self._timeout = timeout

    async def close(self) -> None:
        await self._links.close()

    async def _call(
        self, address: str, code: Code, message: m.Message, response: type[R], timeout: float = 0
    ) -> R:
        link = self._links.to(address)
        reply = await link.call(code, message, timeout=timeout or self._timeout)
        if not isinstance(reply.message, response):
            raise RemoteProtocolError("unexpected answer", found=type(reply.message).__name__)
        raise_for_status(getattr(reply.message, "status", None))
        return reply.message

    async def sync(self, address: str, range_: m.Range, durability: int) -> m.Range:
        """Create the range there, or raise its epoch; returns it with its next offset.

        SealedError when the node holds it and it takes no more appends.
        """
        wanted = m.StreamRanges(stream_id=range_.stream_id, ranges=(range_,), durability=durability)
        response = await self._call(
            address,
            Code.SYNC_RANGES,
            m.SyncRangesRequest(timeout_ms=self._timeout_ms, stream_ranges=(wanted,)),
            m.SyncRangesResponse,
        )
        for result in response.sync_responses:
            raise_for_status(result.status, stream_id=range_.stream_id)
            for synced in result.ranges:
                if synced.range_index == range_.range_index:
                    return synced
        raise RemoteProtocolError("sync without a result", stream_id=range_.stream_id)

    async def seal(
        self, address: str, range_id: m.RangeId, *, timeout: float
    ) -> m.SealRangesResult:
        """The result's range has the end that is durable there."""
        response = await self._call(
            address,
            Code.SEAL_RANGES,
            m.SealRangesRequest(timeout_ms=int(timeout * 1000), ranges=(range_id,)),
            m.SealRangesResponse,
            timeout,
        )
        for result in response.seal_responses:
            raise_for_status(result.status, stream_id=range_id.stream_id)
            if result.range is not None and result.range.end_offset >= 0:
                return result
        raise RemoteProtocolError("seal without an end", stream_id=range_id.stream_id)

    async def describe(self, address: str, range_id: m.RangeId) -> m.DescribeRangeResult:
        response = await self._call(
            address,
            Code.DESCRIBE_RANGES,
            m.DescribeRangesRequest(timeout_ms=self._timeout_ms, ranges=(range_id,)),
            m.DescribeRangesResponse,
        )
        for result in response.describe_responses:
            raise_for_status(result.status, stream_id=range_id.stream_id)
            if result.range is not None:
                return result
        raise RemoteProtocolError("describe without a range", stream_id=range_id.stream_id)

    async def delete(self, address: str, stream_id: int) -> None:
        response = await self._call(
            address,
            Code.DELETE_STREAMS,
            m.DeleteStreamsRequest(
                timeout_ms=self._timeout_ms, streams=(m.Stream(stream_id=stream_id),)
            ),
            m.DeleteStreamsResponse,
        )
        for result in response.delete_responses:
            raise_for_status(result.status, stream_id=stream_id)

    async def trim(self, address: str, stream_id: int, offset: int) -> None:
        trimmed = m.TrimmedStream(stream_id=stream_id, trim_offset=offset)
        response = await self._call(
            address,
            Code.TRIM_STREAMS,
            m.TrimStreamsRequest(timeout_ms=self._timeout_ms, trimmed_streams=(trimmed,)),
            m.TrimStreamsResponse,
        )
        for result in response.trim_responses:
            raise_for_status(result.status, stream_id=stream_id)

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout * 1000)
