"""The controller's calls to the broker: the topics between containers are made, voided,
purged, removed; how far queries have read the topics of users is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from headrace.client.iggy import IggyClient
from headrace.ids import WindowId
from headrace.pipeline.controller.backlog import Reading, readings, remove_positions
from headrace.pipeline.plan.edges import (
    Edge,
    edges_of,
    last_closed,
    make_edge,
    purge_edge,
    remove_edges,
    reset_edge,
)
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.wire.umbilical.windows import NO_WINDOW

Connect = Callable[[], Awaitable[IggyClient]]
"""A connection that is logged in."""


class Edges(Protocol):
    """What the controller needs of the broker. Errors are HeadraceErrors; all may be repeated."""

    async def make(self, plan: PhysicalPlan, after: WindowId = NO_WINDOW) -> None: ...

    async def closed(self, plan: PhysicalPlan, streams: Iterable[str]) -> WindowId:
        """The last window that anybody closed in one of these."""
        ...

    async def reset(
        self, plan: PhysicalPlan, streams: Iterable[str], *, window: WindowId, epoch: int
    ) -> None: ...

    async def purge(self, plan: PhysicalPlan, window: WindowId) -> None: ...

    async def remove(self, application: str) -> None: ...

    async def readings(
        self, application: str, topic: str, operators: Collection[str]
    ) -> dict[str, dict[str, Reading]] | None:
        """How far these operators' queries have read a topic, by partition; None: nobody knows."""
        ...

    async def remove_positions(
        self, application: str, topic: str, operators: Collection[str]
    ) -> None:
        """Forget how far these operators' queries have read a topic: retention waits no longer."""
        ...

    async def close(self) -> None: ...


class BrokerEdges:
    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._client: IggyClient | None = None
        self._connecting = asyncio.Lock()

    async def make(self, plan: PhysicalPlan, after: WindowId = NO_WINDOW) -> None:
        for edge in edges_of(plan):
            await make_edge(await self._connected(), edge, after=after)

    async def closed(self, plan: PhysicalPlan, streams: Iterable[str]) -> WindowId:
        found = [await last_closed(await self._connected(), one) for one in _some(plan, streams)]
        return max(found, default=NO_WINDOW)

    async def reset(
        self, plan: PhysicalPlan, streams: Iterable[str], *, window: WindowId, epoch: int
    ) -> None:
        for edge in _some(plan, streams):
            await reset_edge(await self._connected(), edge, window=window, epoch=epoch)

    async def purge(self, plan: PhysicalPlan, window: WindowId) -> None:
        for edge in edges_of(plan):
            await purge_edge(await self._connected(), edge, window=window)

    async def remove(self, application: str) -> None:
        await remove_edges(await self._connected(), application)

    async def readings(
        self, application: str, topic: str, operators: Collection[str]
    ) -> dict[str, dict[str, Reading]] | None:
        return await readings(await self._connected(), application, topic, operators)

    async def remove_positions(
        self, application: str, topic: str, operators: Collection[str]
    ) -> None:
        await remove_positions(await self._connected(), application, topic, operators)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> IggyClient:
        async with self._connecting:
            if self._client is None or not self._client.usable:
                self._client = await self._connect()
            return self._client


class NoEdges:
    """For a controller without a broker, whose applications are of one container each."""

    async def make(self, plan: PhysicalPlan, after: WindowId = NO_WINDOW) -> None: ...

    async def closed(self, plan: PhysicalPlan, streams: Iterable[str]) -> WindowId:
        return NO_WINDOW

    async def reset(
        self, plan: PhysicalPlan, streams: Iterable[str], *, window: WindowId, epoch: int
    ) -> None: ...

    async def purge(self, plan: PhysicalPlan, window: WindowId) -> None: ...

    async def remove(self, application: str) -> None: ...

    async def readings(
        self, application: str, topic: str, operators: Collection[str]
    ) -> dict[str, dict[str, Reading]] | None:
        return None

    async def remove_positions(
        self, application: str, topic: str, operators: Collection[str]
    ) -> None: ...

    async def close(self) -> None: ...


def _some(plan: PhysicalPlan, streams: Iterable[str]) -> list[Edge]:
    wanted = set(streams)
    return [edge for edge in edges_of(plan) if edge.stream in wanted]
