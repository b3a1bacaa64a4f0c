"""What the broker needs of other workers, and what stands for it where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headrace.broker.catalogue import events
from headrace.broker.partitions.offsets import Place
from headrace.broker.shards.messages import ClientState, WorkerState
from headrace.errors import NotLeaderError

if TYPE_CHECKING:
    import asyncio

    from headrace.wire.iggy.batch import Positions


class OpenPartition(Protocol):
    """A partition wherever it is led, as far as windows, tickets and retention need it."""

    @property
    def stream_id(self) -> int: ...

    @property
    def start_offset(self) -> int: ...

    @property
    def committed(self) -> int: ...

    async def publish(
        self, area: memoryview, starts: Positions, *, publisher: int, window: int, attempt: int
    ) -> tuple[int, Sequence[asyncio.Future[int]]]:
        """Append messages of a window; the first offset, and what to wait for. NotLeaderError
        when a later attempt of the publisher's has begun."""

    async def begin(self, publisher: int, attempt: int) -> None:
        """Nothing of the publisher's earlier attempts is appended from now on, and what they
        appended is below `committed`."""

    async def sync(self) -> None: ...

    async def trim(self, offset: int) -> None: ...


class Workers(Protocol):
    """The workers of a cluster, seen from one of them."""

    @property
    def coordinates(self) -> bool:
        """Whether the catalogue is changed here."""

    async def wait_applied(self, offset: int) -> None:
        """Until every worker knows the catalogue's events below `offset`."""

    async def assign(self, event: events.PartitionAssigned) -> None:
        """Have the coordinator record it; returns when it is known here."""

    async def open_partition(self, place: Place, shard: int) -> OpenPartition: ...

    async def lowest_offset(self, place: Place, shard: int) -> int | None: ...

    async def clients(self) -> list[ClientState]:
        """Who is connected to other workers."""

    async def states(self) -> list[WorkerState]:
        """How the other workers do that answer."""

    def leader_of(self, shard: int) -> str:
        """The name of who leads a shard; empty while nobody does, as far as is known."""

    async def wait_led(self, shard: int, worker: str) -> None:
        """Until this worker leads the shard; not for ever."""

    async def wait_members(self) -> None:
        """Until every worker knows who is in which group."""

    async def forget_session(self, number: int) -> None:
        """A session of dialect C is over: no worker knows its numbers any more."""

    async def take_left(self, user_uid: int, fingerprint: bytes) -> bytes | None:
        """What another worker answered to a SEND that a connection of the user's ended with."""

    def on_members(self) -> None:
        """Groups or their members changed here."""

    def on_joined(self, client_id: int, worker: str) -> None:
        """A client that is connected to another worker joined a group."""

    def tell_gone(self, client_id: int) -> None:
        """Tell the coordinator that a client left."""


class NoOthers:
    """One process leads everything."""

    coordinates = True

    async def wait_applied(self, offset: int) -> None:
        return

    async def assign(self, event: events.PartitionAssigned) -> None:
        raise NotLeaderError("nobody else keeps the catalogue")

    async def open_partition(self, place: Place, shard: int) -> OpenPartition:
        raise NotLeaderError("nobody else leads a partition")

    async def lowest_offset(self, place: Place, shard: int) -> int | None:
        raise NotLeaderError("nobody else leads a partition")

    async def clients(self) -> list[ClientState]:
        return []

    async def states(self) -> list[WorkerState]:
        return []

    def leader_of(self, shard: int) -> str:
        return ""

    async def wait_led(self, shard: int, worker: str) -> None:
        return

    async def wait_members(self) -> None:
        return

    async def forget_session(self, number: int) -> None:
        return

    async def take_left(self, user_uid: int, fingerprint: bytes) -> bytes | None:
        return None

    def on_members(self) -> None:
        return

    def on_joined(self, client_id: int, worker: str) -> None:
        return

    def tell_gone(self, client_id: int) -> None:
        return
