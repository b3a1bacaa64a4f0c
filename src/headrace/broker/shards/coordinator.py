"""What the coordinator does for the others: knows who lives, decides who leads which shard, and
tells everybody what changed.

A change is answered when every worker that may serve knows it. Who serves is known by the leases of
workers, and by who joined. One that does not say that it applied the change is waited for
`SETTLED_SECONDS`: by then it has, or it answers nobody, since no worker answers by a catalogue that
was not proven to be whole for `CURRENT_SECONDS` (see `worker.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

import msgspec

from headrace.broker.core import Broker
from headrace.broker.shards import messages as m
from headrace.broker.shards.assignment import NOBODY, Move, plan
from headrace.broker.shards.leases import SHARD_PREFIX, WORKER_PREFIX, shard_of
from headrace.broker.shards.peers import Peers
from headrace.errors import HeadraceError
from headrace.observability.logging import get_logger
from headrace.sbp_client.client import SbpClient

log = get_logger(__name__)

SETTLED_SECONDS = 1.0
_LOOK_MS = 200
_MOVE_SECONDS = 5.0
_TELL_SECONDS = 0.05
_HAND_OVER_SECONDS = 6.0
_SETTLE_SECONDS = 1.0
"""At most, for those who live to join a new coordinator before their shards are given away."""


class Coordinator:
    """From the moment that a worker holds the first shard's lease, until it does no more."""

    def __init__(
        self,
        broker: Broker,
        client: SbpClient,
        peers: Peers,
        *,
        lead: Callable[[m.Lead], Awaitable[list[int]]],
        hand_over: Callable[[int], Awaitable[bool]],
    ) -> None:
        """`lead` and `hand_over` are this worker's own, as the others have theirs."""
        self._broker = broker
        self._client = client
        self._peers = peers
        self._lead_here = lead
        self._hand_over_here = hand_over
        self._joined: dict[str, None] = {}
        self._living: set[str] = set()
        """Others that hold the lease of a worker, whether they joined or not."""
        self._clients: dict[int, str] = {}
        """Members of groups that are connected to other workers."""
        self._versions = 0
        self._members_version = 0
        self.retired = False
        """Whether all workers are about to end, so that nobody takes what others give back."""
        self._look = asyncio.Event()

    # -- who is there

    @property
    def joined(self) -> list[str]:
        return list(self._joined)

    async def look_around(self) -> None:
        """Learn from the leases who lives; groups go on without the clients of who does not."""
        living = set(await self._peers.links.find()) - {self._peers.me}
        gone = {of for of in self._clients.values() if of not in living and of not in self._joined}
        self._living = living
        for worker in sorted(gone):
            self._retain_clients(worker, ())

    def on_join(self, worker: str, members: Collection[int]) -> m.Welcome:
        if worker not in self._joined:
            log.info("worker joined", worker=worker, workers=len(self._joined) + 2)
        self._joined[worker] = None
        self._look.set()
        self._retain_clients(worker, members)
        return m.Welcome(self._broker.catalogue_end, self._leaders(), self._members())

    def on_gone(self, worker: str) -> None:
        """Its links are over: it is dead, or about to come again; its lease tells."""
        if self._joined.pop(worker, self) is not self:
            log.info("worker left", worker=worker)
            self._look.set()

    def _retain_clients(self, worker: str, members: Collection[int]) -> None:
        for client_id in [c for c, of in self._clients.items() if of == worker]:
            if client_id not in members:
                self.on_client_gone(client_id)
                self._broker.on_client_gone(client_id)

    def on_client_joined(self, client_id: int, worker: str) -> None:
        """The worker that a member is connected to; empty: this one."""
        if worker:
            self._clients[client_id] = worker
        else:
            self._clients.pop(client_id, None)

    def on_client_gone(self, client_id: int) -> None:
        self._clients.pop(client_id, None)

    def take_clients(self, workers: Collection[tuple[int, str]]) -> None:
        """Members that the coordinator before knew."""
        self._clients.update((client, of) for client, of in workers if of != self._peers.me)
        sessions = self._broker.sessions
        for client_id, of in workers:
            if of == self._peers.me and sessions.get(client_id) is None:
                self._broker.on_client_gone(client_id)

    # -- telling the others

    def members(self) -> m.GroupMembers:
        """As they are, after a change."""
        self._members_version += 1
        return self._members()

    def _members(self) -> m.GroupMembers:
        rows = self._broker.membership.rows()
        here = self._broker.sessions
        workers = {
            client_id: self._peers.me
            for _, _, members in rows
            for client_id, _ in members
            if here.get(client_id) is not None
        }
        workers.update(self._clients)
        groups = [m.GroupState(*row) for row in rows]
        return m.GroupMembers(self._members_version, groups, list(workers.items()))

    def _leaders(self) -> m.Leaders:
        return m.Leaders(self._versions, self._peers.leaders)

    def pulse(self) -> m.PulseState:
        return m.PulseState(self._broker.catalogue_end, self._versions, self._members_version)

    async def settle(self, offset: int) -> None:
        """Until the catalogue's events below `offset` are known wherever anybody is answered."""
        since = self._broker.runtime.clock.monotonic()
        message = m.Applied(offset)
        workers = sorted({*self._joined, *self._living})
        await asyncio.gather(*(self._settle(worker, message, since) for worker in workers))

    async def _settle(self, worker: str, message: m.Applied, since: float) -> None:
        clock = self._broker.runtime.clock
        while (left := since + SETTLED_SECONDS - clock.monotonic()) > 0:
            try:
                await self._peers.ask(worker, message, seconds=left)
            except HeadraceError as error:
                log.info("worker does not answer", worker=worker, reason=str(error))
            else:
                return
            if worker not in self._joined and worker not in self._living:
                return  # its lease is over
            await clock.sleep(min(_TELL_SECONDS, left))

    async def tell_members(self) -> None:
        message = self.members()
        await asyncio.gather(*(self._tell(worker, message) for worker in self._joined))

    async def _tell(self, worker: str, message: m.Message) -> None:
        try:
            await self._peers.ask(worker, message, seconds=SETTLED_SECONDS)
        except HeadraceError as error:
            log.info("worker does not answer", worker=worker, reason=str(error))

    async def gather(self, message: m.Message) -> list[memoryview]:
        """What those answer who do."""
        asked = (self._peers.ask(worker, message, seconds=1.0) for worker in self._joined)
        found = await asyncio.gather(*asked, return_exceptions=True)
        return [each for each in found if isinstance(each, memoryview)]

    # -- who leads what

    async def balance(self) -> None:
        """Look at the leases again and again, and give shards to who should lead them."""
        if self._peers.leaders:
            await self._wait_joined()
        version = -1
        while True:
            try:
                found = await self._client.list_leases(SHARD_PREFIX)
                if found.version != version or self._look.is_set():
                    version = found.version
                    self._look.clear()
                    await self.look_around()
                    leaders = [self._peers.me, *([NOBODY] * (self._broker.catalogue.shards - 1))]
                    for lease in found.leases:
                        shard = shard_of(lease.name)
                        if shard and shard < len(leaders):
                            leaders[shard] = lease.holder
                    await self._on_leaders(leaders)
                    if not self.retired and await self._improve(leaders):
                        self._look.set()
                        continue
            except HeadraceError as error:
                log.info("shards not looked at", reason=str(error))
            await self._wait()

    async def _wait_joined(self) -> None:
        """Until everybody joined who lives, by the word of the leases; not for ever."""
        clock = self._broker.runtime.clock
        deadline = clock.monotonic() + _SETTLE_SECONDS
        while clock.monotonic() < deadline and not self._living <= self._joined.keys():
            await clock.sleep(_TELL_SECONDS)
            try:
                await self.look_around()
            except HeadraceError as error:
                log.info("workers not looked for", reason=str(error))

    async def wait_led(self, shard: int, worker: str) -> None:
        """Look at the shards now, and wait until the worker leads this one; not for ever."""
        self._look.set()
        clock = self._broker.runtime.clock
        deadline = clock.monotonic() + _MOVE_SECONDS
        while self._peers.leader_of(shard) != worker and clock.monotonic() < deadline:
            await self._peers.wait_changed(_MOVE_SECONDS)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_LOOK_MS / 1000):
                await self._look.wait()
        except TimeoutError:
            return

    async def _on_leaders(self, leaders: list[str]) -> None:
        if leaders == self._peers.leaders:
            return
        self._versions += 1
        self._peers.leaders = leaders
        self._peers.on_changed()
        told = m.encode(self._leaders())
        for worker in self._joined:
            self._peers.links.notify(worker, told)

    async def _improve(self, leaders: list[str]) -> bool:
        """Carry out the next moves; whether there were any."""
        alive = {lease.holder for lease in (await self._client.list_leases(WORKER_PREFIX)).leases}
        # Who is linked but holds no lease hangs, or is cut off, and cannot take any.
        workers = sorted([self._peers.me, *(each for each in self._joined if each in alive)])
        # Whoever holds a lease and has not joined is dead, or on its way back: the lease tells.
        held = [leader for leader in set(leaders) if leader and leader not in workers]
        moves = [
            move
            for move in plan(leaders, [*workers, *sorted(held)], self._broker.catalogue.pins)
            if move.to in workers and move.leader in (NOBODY, *workers)
        ]
        # At once: one that does not answer holds up no other.
        targets = dict.fromkeys(move.to for move in moves)
        await asyncio.gather(
            *(self._move(to, [move for move in moves if move.to == to]) for to in targets)
        )
        return bool(moves)

    async def _move(self, to: str, moves: list[Move]) -> None:
        clean = False
        try:
            for move in moves:
                if move.leader:
                    clean = await self._hand_over(move)
            message = m.Lead([move.shard for move in moves], self._broker.catalogue_end, clean)
            if to == self._peers.me:
                await self._lead_here(message)
            else:
                await self._peers.ask(to, message, seconds=_HAND_OVER_SECONDS)
        except HeadraceError as error:
            log.warning("shards not taken", worker=to, reason=str(error))

    async def _hand_over(self, move: Move) -> bool:
        if move.leader == self._peers.me:
            return await self._hand_over_here(move.shard)
        message = m.HandOver(move.shard)
        data = await self._peers.ask(move.leader, message, seconds=_HAND_OVER_SECONDS)
        return msgspec.msgpack.decode(data, type=bool)
