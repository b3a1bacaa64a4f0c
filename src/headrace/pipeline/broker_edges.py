"""The controller's calls to the broker: the topics between containers are made, voided, purged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from headrace.ids import WindowId
from headrace.pipeline.physical import PhysicalPlan
from headrace.pipeline.windows import NO_WINDOW


class Edges(Protocol):
    """What the controller needs of the broker. Errors are HeadraceErrors; all may be repeated."""

    async def make(self, plan: PhysicalPlan, after: WindowId = NO_WINDOW) -> None: ...

    async def reset(
        self, plan: PhysicalPlan, streams: Iterable[str], *, window: WindowId, epoch: int
    ) -> None: ...

    async def purge(self, plan: PhysicalPlan, window: WindowId) -> None: ...

    async def close(self) -> None: ...


class NoEdges:
    """For a controller without a broker, whose applications are of one container each."""

    async def make(self, plan: PhysicalPlan, after: WindowId = NO_WINDOW) -> None: ...

    async def reset(
        self, plan: PhysicalPlan, streams: Iterable[str], *, window: WindowId, epoch: int
    ) -> None: ...

    async def purge(self, plan: PhysicalPlan, window: WindowId) -> None: ...

    async def close(self) -> None: ...
