"""What the placement manager says to data nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from headrace.errors import DeadlineError, HeadraceError, RemoteProtocolError
from headrace.sbp_client.channels import ChannelPool, Connect
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import error_of, is_success, raise_for_status
from headrace.wire.sbp.opcodes import Code

R = TypeVar("R", bound=m.Message)


@dataclass(frozen=True, slots=True)
class RangeSync:
    """What a data node is told about one range."""

    range: m.Range
    durability: int
    reserved: bool = False


class NodeCalls:
    """Calls by address; errors leave as the classes their status stands for."""

    def __init__(
        self, connect_to: Callable[[str], Connect], *, timeout: float, version: Callable[[], int]
    ) -> None:
        """`version` of the metadata that speaks: a data node that has seen newer refuses."""
        self._links = ChannelPool(connect_to)
        self._timeout = timeout
        self._version = version

    async def close(self) -> None:
        await self._links.close()

    async def _call(
        self,
        address: str,
        code: Code,
        message: m.Message,
        response: type[R],
        timeout: float = 0,
        *,
        check: Callable[[], None] | None = None,
    ) -> R:
        """`check` is the last thing before the request leaves; it may raise."""
        link = self._links.to(address)
        seconds = timeout or self._timeout
        try:
            async with asyncio.timeout(seconds):  # connecting included
                if check is not None:
                    await link.channel(timeout=seconds)
                    check()
                reply = await link.call(code, message, timeout=seconds)
        except TimeoutError:
            raise DeadlineError("no answer in time", opcode=code.name, peer=address) from None
        if not isinstance(reply.message, response):
            raise RemoteProtocolError("unexpected answer", found=type(reply.message).__name__)
        raise_for_status(getattr(reply.message, "status", None))
        return reply.message

    async def sync(
        self, address: str, syncs: Sequence[RangeSync], *, check: Callable[[], None]
    ) -> list[m.Range | HeadraceError]:
        """Open ranges there, raise their epochs or tell their final ends; one outcome for each.

        A range comes back with its next offset there. SealedError when the node holds an open one
        and it takes no more appends.
        """
        response = await self._call(
            address,
            Code.SYNC_RANGES,
            m.SyncRangesRequest(
                timeout_ms=self._timeout_ms,
                stream_ranges=tuple(
                    m.StreamRanges(
                        stream_id=sync.range.stream_id,
                        ranges=(sync.range,),
                        durability=sync.durability,
                        reserved=sync.reserved,
                    )
                    for sync in syncs
                ),
                metadata_version=self._version(),
            ),
            m.SyncRangesResponse,
            check=check,
        )
        found: dict[tuple[int, int], m.Range | HeadraceError] = {}
        for result in response.sync_responses:
            for range_ in result.ranges:
                key = (range_.stream_id, range_.range_index)
                if result.status is None or is_success(result.status):
                    found[key] = range_
                else:
                    found[key] = error_of(result.status, stream_id=range_.stream_id)
        missing = RemoteProtocolError("sync without a result")
        return [found.get((s.range.stream_id, s.range.range_index), missing) for s in syncs]

    async def seal(
        self, address: str, range_id: m.RangeId, *, timeout: float
    ) -> m.SealRangesResult:
        """The result's range has the end that is durable there."""
        response = await self._call(
            address,
            Code.SEAL_RANGES,
            m.SealRangesRequest(
                timeout_ms=int(timeout * 1000),
                ranges=(range_id,),
                metadata_version=self._version(),
            ),
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

    async def held(self, address: str, stream_id: int = -1) -> list[m.Range]:
        """Every range that the node has, listed here or not; of one stream, or of all."""
        criteria = m.RangeCriteria(stream_id=stream_id)
        response = await self._call(
            address,
            Code.LIST_RANGES,
            m.ListRangesRequest(timeout_ms=self._timeout_ms, range_criteria=(criteria,)),
            m.ListRangesResponse,
        )
        found: list[m.Range] = []
        for result in response.list_responses:
            raise_for_status(result.status)
            found.extend(result.ranges)
        return found

    async def delete(self, address: str, stream_id: int) -> None:
        response = await self._call(
            address,
            Code.DELETE_STREAMS,
            m.DeleteStreamsRequest(
                timeout_ms=self._timeout_ms,
                streams=(m.Stream(stream_id=stream_id),),
                metadata_version=self._version(),
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
            m.TrimStreamsRequest(
                timeout_ms=self._timeout_ms,
                trimmed_streams=(trimmed,),
                metadata_version=self._version(),
            ),
            m.TrimStreamsResponse,
        )
        for result in response.trim_responses:
            raise_for_status(result.status, stream_id=stream_id)

    @property
    def _timeout_ms(self) -> int:
        return int(self._timeout * 1000)
