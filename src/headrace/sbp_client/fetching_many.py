"""FETCH of many streams: one request per data node, results by request_index.

A stream that fails there is fetched by itself, with everything `Fetcher` does about replicas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.errors import DeadlineError, HeadraceError, RangeNotFoundError, UnavailableError
from headrace.sbp_client.fetch import Fetcher
from headrace.sbp_client.fetched import Fetched, Want, checked
from headrace.sbp_client.metadata import MetadataClient
from headrace.sbp_client.ranges import Replicas
from headrace.wire.sbp import messages as m


class ManyFetcher:
    def __init__(self, client: MetadataClient, fetcher: Fetcher, replicas: Replicas) -> None:
        self._client = client
        self._fetcher = fetcher
        self._replicas = replicas

    async def fetch_many(
        self, wants: Sequence[Want], *, max_wait_ms: int, min_bytes: int
    ) -> list[Fetched | HeadraceError | None]:
        missing = [w.stream_id for w in wants if self._client.known_ranges(w.stream_id) is None]
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
            ranges = self._client.known_ranges(want.stream_id)
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
            ranges = self._client.known_ranges(want.stream_id)
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
