"""What a client asks the placement managers: streams, ranges, leases.

Calls are repeated inside their deadline. All of them are idempotent, except the creation of a
stream without a name (which may then leave an unused stream behind) and the acquisition of a lease
(which may then skip an epoch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from headrace.concurrency.retry import retry
from headrace.config.process import ClientSettings
from headrace.errors import NotFoundError, RangeNotFoundError, RemoteProtocolError
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import PlacementChannel
from headrace.sbp_client.ranges import RangeMap, milliseconds, only, present, typed
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import raise_for_status
from headrace.wire.sbp.opcodes import Code

T = TypeVar("T")
R = TypeVar("R", bound=m.Message)


class MetadataClient:
    """Keeps what it learns of ranges until somebody finds out that it no longer holds."""

    def __init__(
        self, runtime: Runtime, placement: PlacementChannel, settings: ClientSettings
    ) -> None:
        self.runtime = runtime
        self.settings = settings
        self.placement = placement
        self.known_ranges: dict[int, RangeMap] = {}
        """By stream, as far as somebody asked."""
        self.home_node = -1
        """The data node that should lead ranges which are opened for this client: one in its own
        process, say. -1: any. Streams and writers may say otherwise."""

    # Streams

    async def create_stream(
        self,
        *,
        name: str = "",
        replica_nums: int = 1,
        retention_period_ms: int = 0,
        durability: m.Durability = m.Durability.SYNCED,
        preferred_node: int | None = None,
    ) -> m.Stream:
        """Create, or with a name find, a stream. NotEnoughNodesError while too few nodes live.

        `preferred_node` leads the first range, if it can (-1: any); `home_node` unless given.
        """
        wanted = m.Stream(
            replica_nums=replica_nums,
            retention_period_ms=retention_period_ms,
            name=name,
            durability=durability,
            preferred_node=self.home_node if preferred_node is None else preferred_node,
        )
        (stream,) = await self.create_streams([wanted])
        return stream

    async def create_streams(self, streams: Sequence[m.Stream]) -> list[m.Stream]:
        """All or the first error; those made before it stay (named ones are found again)."""

        def read(response: m.CreateStreamsResponse) -> list[m.Stream]:
            made: list[m.Stream] = []
            for result in response.create_responses:
                raise_for_status(result.status)
                stream = present(result.stream)
                if result.range is not None and result.range.range_index == 0:
                    self._remember(stream.stream_id, [result.range])
                made.append(stream)
            return made

        request = m.CreateStreamsRequest(streams=tuple(streams))
        return await self._ask(Code.CREATE_STREAMS, request, m.CreateStreamsResponse, read)

    async def find_stream(self, name: str) -> m.Stream:
        """The stream of that name; NotFoundError where there is none, and none is made."""

        def read(response: m.CreateStreamsResponse) -> m.Stream:
            result = only(response.create_responses)
            raise_for_status(result.status, name=name)
            return present(result.stream)

        request = m.CreateStreamsRequest(streams=(m.Stream(name=name),))
        return await self._ask(Code.CREATE_STREAMS, request, m.CreateStreamsResponse, read)

    async def describe_stream(self, stream_id: int) -> m.Stream:
        def read(response: m.DescribeStreamsResponse) -> m.Stream:
            result = only(response.describe_responses)
            raise_for_status(result.status, stream_id=stream_id)
            return present(result.stream)

        request = m.DescribeStreamsRequest(stream_ids=(stream_id,))
        return await self._ask(Code.DESCRIBE_STREAMS, request, m.DescribeStreamsResponse, read)

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

        def read(response: m.UpdateStreamsResponse) -> m.Stream:
            result = only(response.update_responses)
            raise_for_status(result.status, stream_id=stream_id)
            return present(result.stream)

        request = m.UpdateStreamsRequest(streams=(wanted,))
        return await self._ask(Code.UPDATE_STREAMS, request, m.UpdateStreamsResponse, read)

    async def delete_stream(self, stream_id: int) -> None:
        """Deleting a deleted stream succeeds."""

        def read(response: m.DeleteStreamsResponse) -> None:
            raise_for_status(only(response.delete_responses).status, stream_id=stream_id)

        request = m.DeleteStreamsRequest(streams=(m.Stream(stream_id=stream_id),))
        await self._ask(Code.DELETE_STREAMS, request, m.DeleteStreamsResponse, read)
        self.invalidate(stream_id)

    async def trim(self, stream_id: int, offset: int) -> m.Range:
        """Forget everything below `offset`; returns the smallest range that is left."""

        def read(response: m.TrimStreamsResponse) -> m.Range:
            result = only(response.trim_responses)
            raise_for_status(result.status, stream_id=stream_id, offset=offset)
            return present(result.range)

        trimmed = m.TrimmedStream(stream_id=stream_id, trim_offset=offset)
        request = m.TrimStreamsRequest(trimmed_streams=(trimmed,))
        smallest = await self._ask(Code.TRIM_STREAMS, request, m.TrimStreamsResponse, read)
        self.invalidate(stream_id)
        return smallest

    # Ranges

    async def list_ranges(self, stream_id: int) -> list[m.Range]:
        """As the placement manager knows them now, in order."""

        def read(response: m.ListRangesResponse) -> list[m.Range]:
            ranges: list[m.Range] = []
            for result in response.list_responses:  # several when the answer was split
                raise_for_status(result.status, stream_id=stream_id)
                ranges.extend(result.ranges)
            return sorted(ranges, key=lambda r: r.range_index)

        asked = self.runtime.clock.monotonic()
        request = m.ListRangesRequest(range_criteria=(m.RangeCriteria(stream_id=stream_id),))
        ranges = await self._ask(Code.LIST_RANGES, request, m.ListRangesResponse, read)
        self._remember(stream_id, ranges, known_at=asked)
        return ranges

    async def list_ranges_on(self, node_id: int) -> list[m.Range]:
        """The ranges that a data node holds or is to hold; for holders of the cluster's secret."""

        def read(response: m.ListRangesResponse) -> list[m.Range]:
            for result in response.list_responses:
                raise_for_status(result.status, node_id=node_id)
            return [one for result in response.list_responses for one in result.ranges]

        criterion = m.RangeCriteria(data_node=m.DataNode(node_id=node_id))
        request = m.ListRangesRequest(range_criteria=(criterion,))
        return await self._ask(Code.LIST_RANGES, request, m.ListRangesResponse, read)

    async def list_ranges_of(self, stream_ids: Sequence[int]) -> dict[int, list[m.Range]]:
        """The ranges of many streams in one request; streams that do not exist are left out."""

        def read(response: m.ListRangesResponse) -> dict[int, list[m.Range]]:
            found: dict[int, list[m.Range]] = {}
            for result in response.list_responses:
                with suppress(NotFoundError):
                    raise_for_status(result.status)
                    criterion = present(result.range_criteria)
                    found.setdefault(criterion.stream_id, []).extend(result.ranges)
            return found

        asked = self.runtime.clock.monotonic()
        criteria = tuple(m.RangeCriteria(stream_id=stream_id) for stream_id in stream_ids)
        request = m.ListRangesRequest(range_criteria=criteria)
        found = await self._ask(Code.LIST_RANGES, request, m.ListRangesResponse, read)
        for stream_id, ranges in found.items():
            ranges.sort(key=lambda r: r.range_index)
            self._remember(stream_id, ranges, known_at=asked)
        return found

    async def seal(
        self,
        stream_id: int,
        index: int,
        writer_epoch: int = -1,
        *,
        preferred_node: int = -1,
        timeout: float | None = None,
    ) -> m.Range:
        """Seal a range and open the next one; returns the writable range.

        With index -1 and an epoch: open the stream for writing under that epoch, sealing only if
        the open range cannot go on. FencedError when the epoch is too low. Sealing a range that is
        sealed returns the range that is writable now. `preferred_node` leads the range that is
        opened, if it can.
        """

        def read(response: m.SealRangesResponse) -> m.Range:
            result = only(response.seal_responses)
            raise_for_status(result.status, stream_id=stream_id, index=index, epoch=writer_epoch)
            return present(result.range)

        wanted = m.RangeId(
            stream_id=stream_id,
            range_index=index,
            writer_epoch=writer_epoch,
            preferred_node=preferred_node,
        )
        request = m.SealRangesRequest(ranges=(wanted,))
        writable = await self._ask(
            Code.SEAL_RANGES, request, m.SealRangesResponse, read, timeout=timeout
        )
        known = self.known_ranges.get(stream_id)
        if known is not None:
            self.known_ranges[stream_id] = known.succeeded_by(writable)
        return writable

    async def accept_loss(self, stream_id: int, index: int, held: int) -> m.Range:
        """Give up what no living node has of a sealed range, from offset `held` on, for ever.

        InvalidArgumentError when living nodes hold more of it by now, or less.
        """

        def read(response: m.SealRangesResponse) -> m.Range:
            result = only(response.seal_responses)
            raise_for_status(result.status, stream_id=stream_id, index=index, held=held)
            return present(result.range)

        wanted = m.RangeId(stream_id=stream_id, range_index=index, accept_loss=held)
        request = m.SealRangesRequest(ranges=(wanted,))
        self.invalidate(stream_id)
        return await self._ask(Code.SEAL_RANGES, request, m.SealRangesResponse, read)

    async def writable(self, stream_id: int) -> m.Range:
        """The range that takes appends now, as far as is known; opened if there is none."""
        writable = (await self.ranges(stream_id)).writable()
        if writable is None:
            ranges = await self.list_ranges(stream_id)
            if not ranges:
                raise RangeNotFoundError(stream_id=stream_id)
            writable = ranges[-1]
            if writable.end_offset >= 0:
                writable = await self.seal(stream_id, writable.range_index)
        return writable

    async def ranges(self, stream_id: int) -> RangeMap:
        """What is known, asked for if nothing is."""
        if stream_id not in self.known_ranges:
            await self.list_ranges(stream_id)
        return self.known_ranges[stream_id]

    def invalidate(self, stream_id: int) -> None:
        self.known_ranges.pop(stream_id, None)

    def _remember(
        self, stream_id: int, ranges: Sequence[m.Range], *, known_at: float | None = None
    ) -> None:
        at = self.runtime.clock.monotonic() if known_at is None else known_at
        self.known_ranges[stream_id] = RangeMap(ranges, known_at=at)

    # Leases and the cluster

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

    async def change_leases(
        self,
        changes: Sequence[m.LeaseChange],
        holder: str,
        duration_ms: int,
        address: str = "",
    ) -> list[m.LeaseResult]:
        """Acquire, renew, release or query up to 256 leases of one holder, each on its own: one
        result per change, in order. Look at `granted`, and `status` of what was asked wrongly."""
        request = m.LeaseRequest(
            action=m.LeaseAction.CHANGE_MANY,
            holder=holder,
            duration_ms=duration_ms,
            address=address,
            leases=tuple(changes),
        )
        results = list((await self._lease(request)).leases)
        if [result.name for result in results] != [change.name for change in changes]:
            raise RemoteProtocolError("other leases answered than asked for")
        return results

    async def list_leases(
        self, prefix: str, *, version: int = -1, wait_ms: int = 0
    ) -> m.LeaseResponse:
        """All leases whose names begin so: `leases`, and the `version` that they are of.

        Who knows `version` waits up to `wait_ms` (30 s at most) for another one; with the same
        `version` in the answer nothing has changed, and there are no `leases` in it. A lease that
        has run out or was given back has no holder.
        """
        request = m.LeaseRequest(
            action=m.LeaseAction.LIST, name=prefix, version=version, wait_ms=wait_ms
        )
        seconds = (self.settings.metadata_timeout_ms + wait_ms) / 1000
        return await self._lease(request, timeout=seconds)

    async def release_holder(self, holder: str, prefix: str = "") -> list[m.LeaseResult]:
        """The holder is dead for certain: its leases, or those whose names begin so, are free at
        once. Returns them. Whoever acquires one gets a higher epoch; should the holder live after
        all, its renewals are refused."""
        request = m.LeaseRequest(action=m.LeaseAction.RELEASE_HOLDER, name=prefix, holder=holder)
        return list((await self._lease(request)).leases)

    async def _lease(
        self, request: m.LeaseRequest, *, timeout: float | None = None
    ) -> m.LeaseResponse:
        return await self._ask(
            Code.LEASE, request, m.LeaseResponse, lambda response: response, timeout=timeout
        )

    async def adopt(
        self, stream_id: int = -1, *, name: str = "", accept_metadata: bool = False
    ) -> m.AdoptResponse:
        """List again what data nodes hold beyond what is listed; see `placement/adoption.py`."""
        request = m.AdoptRequest(stream_id=stream_id, name=name, accept_metadata=accept_metadata)
        return await self._ask(Code.ADOPT, request, m.AdoptResponse, lambda response: response)

    async def describe_cluster(self, *, count_ranges: bool = False) -> m.DescribeClusterResponse:
        """Data nodes and held leases; with `count_ranges` also how replicated the log is."""
        request = m.DescribeClusterRequest(count_ranges=count_ranges)
        return await self._ask(
            Code.DESCRIBE_CLUSTER, request, m.DescribeClusterResponse, lambda response: response
        )

    async def _ask(
        self,
        code: Code,
        request: m.Message,
        expected: type[R],
        read: Callable[[R], T],
        *,
        timeout: float | None = None,
    ) -> T:
        async def attempt(timeout: float) -> T:
            message = replace(request, timeout_ms=milliseconds(timeout))  # type: ignore[type-var]  # a dataclass
            reply = await self.placement.call(code, message, timeout=timeout)
            answer = typed(reply.message, expected)
            raise_for_status(getattr(answer, "status", None))
            return read(answer)

        seconds = self.settings.metadata_timeout_ms / 1000
        return await retry(self.runtime, attempt, seconds if timeout is None else timeout)
