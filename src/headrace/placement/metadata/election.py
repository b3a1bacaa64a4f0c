"""What several placement managers share, and who of them leads.

They share keys with revisions, transactions and leases; the terms are etcd's. `LeaseElection` and
`GuardedStore` use nothing but a `Coordinator`, so that the simulator runs them over
`MemoryMetadata` and a cluster over `EtcdCoordinator`.

Each placement manager keeps a lease alive and puts its address with it. Whoever creates the leader
key, also bound to its lease, leads; the key's create revision is the leader's *term*, which guards
all it writes. The leader counts its lease from the moment before it asked for more time and stops a
margin earlier, so it has stopped before anybody else can begin. A leader that once stopped never
goes on in its term.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from headrace.concurrency.tasks import TaskSet
from headrace.config.placement import PlacementSettings
from headrace.errors import HeadraceError, StateError, UnavailableError
from headrace.runtime.interfaces import Runtime
from headrace.wire.sbp.messages import PlacementManagerNode

ELECTION = "election/"
LEADER_KEY = f"{ELECTION}leader"
MANAGERS = f"{ELECTION}managers/"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key that there is, and what it holds."""

    key: str
    value: bytes
    create_revision: int
    """Of the transaction that made the key. Removed and made again, it has another one."""


@dataclass(frozen=True, slots=True)
class CreatedAt:
    """True when the key was made by that revision; 0: when there is no such key."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class ValueIs:
    key: str
    value: bytes


Condition = CreatedAt | ValueIs


@dataclass(frozen=True, slots=True)
class Transaction:
    """If all conditions hold, everything is written at once; otherwise nothing."""

    conditions: Sequence[Condition]
    puts: Mapping[str, bytes] = field(default_factory=dict)
    removes: Sequence[str] = ()
    lease: int = 0
    """The puts go away with this lease; 0: they stay."""


@dataclass(frozen=True, slots=True)
class Outcome:
    succeeded: bool
    revision: int


class RefusedError(UnavailableError):
    """It was looked at and nothing was done; the same again will fare no better."""


class Coordinator(Protocol):
    """Linearizable: what one caller was told happened is seen by every later call of any other.

    Every call may raise UnavailableError, after which it may have happened, may still happen, or
    never does.
    """

    async def read(self, key: str) -> KeyValue | None: ...

    async def scan(self, prefix: str) -> Sequence[KeyValue]:
        """All keys that start so, in order, as of one moment."""
        ...

    async def write(self, transaction: Transaction) -> Outcome: ...

    async def grant(self, ttl: float) -> tuple[int, float]:
        """A new lease and the seconds it lives without being kept alive."""
        ...

    async def keep_alive(self, lease: int) -> float:
        """The seconds it lives from now on; 0 when it is over."""
        ...

    async def revoke(self, lease: int) -> None:
        """End the lease and everything that was put with it."""
        ...

    async def close(self) -> None: ...


class Election(Protocol):
    """What `PlacementService` asks of it."""

    @property
    def leading(self) -> bool:
        """Whether this one leads, and certainly nobody else."""
        ...

    def managers(self) -> Sequence[PlacementManagerNode]:
        """All that are known, the leader flagged."""
        ...

    def depose(self) -> None:
        """Stop leading: what was written last is not known. Leading again starts with a reload."""
        ...

    async def run(
        self,
        address: str,
        on_elected: Callable[[], Awaitable[None]],
        on_deposed: Callable[[], None],
    ) -> None:
        """Stand for election under `address` until cancelled.

        `on_elected` makes ready to lead; if it fails, somebody else may try. `on_deposed` follows
        each `on_elected`.
        """
        ...

    async def resign(self) -> None:
        """Give up leadership and candidature at once, so that nobody waits for the lease's end."""
        ...


class Candidate(msgspec.Struct, frozen=True):
    name: str
    address: str
    session: str
    """Of one run of one process: a key left by an earlier one is not ours."""


class LeaseElection:
    def __init__(
        self,
        runtime: Runtime,
        coordinator: Coordinator,
        settings: PlacementSettings,
        *,
        name: str,
    ) -> None:
        self._clock = runtime.clock
        self._random = runtime.random
        self._coordinator = coordinator
        self._name = name
        self._ttl = settings.leader_ttl_ms / 1000
        self._margin = settings.leader_margin_ms / 1000
        self._poll = settings.election_poll_ms / 1000
        self._address = ""
        self._candidate = b""
        self._lease = 0
        self._valid_until = float("-inf")
        self._renew_at = float("-inf")
        self._registered = False
        self._managers: tuple[PlacementManagerNode, ...] = ()
        self._changed = asyncio.Event()
        self._tasks = TaskSet("election")
        self.term = 0
        """Create revision of our leader key; 0 while not leading."""

    @property
    def candidate(self) -> bytes:
        """The value of the leader key while it is ours."""
        return self._candidate

    @property
    def leading(self) -> bool:
        return self.term > 0 and self._clock.monotonic() < self._valid_until

    def managers(self) -> Sequence[PlacementManagerNode]:
        return self._managers

    def depose(self) -> None:
        self.term = 0
        self._changed.set()

    async def run(
        self,
        address: str,
        on_elected: Callable[[], Awaitable[None]],
        on_deposed: Callable[[], None],
    ) -> None:
        self._address = address
        while True:
            try:
                await self._campaign()
                await self._lead(on_elected, on_deposed)
            except HeadraceError as error:
                _log.info("election: %s", error)
            except Exception:
                _log.exception("election failed")  # whoever stands aside for good helps nobody
            await self._clock.sleep(self._poll)

    async def _lead(
        self, on_elected: Callable[[], Awaitable[None]], on_deposed: Callable[[], None]
    ) -> None:
        _log.info("%s leads, term %d", self._name, self.term)
        taking_over = self._tasks.start(self._take_over(on_elected), name="take over")
        try:
            await self._hold()
        finally:
            self.term = 0
            taking_over.cancel()
            on_deposed()
        _log.warning("%s leads no more", self._name)
        await self._tasks.finish()
        await self._leave()

    async def _take_over(self, on_elected: Callable[[], Awaitable[None]]) -> None:
        term = self.term
        try:
            await on_elected()
        except Exception as error:
            _log.warning("cannot take over: %s", error, exc_info=not isinstance(error, StateError))
            await self._clock.sleep(self._poll)  # let another one try first
            if self.term == term:
                self.depose()

    async def resign(self) -> None:
        self.depose()
        await self._tasks.close()
        await self._leave()

    # Candidature

    async def _campaign(self) -> None:
        """Until the leader key is ours."""
        while True:
            await self._renew_session()
            if await self._try():
                return
            await self._clock.sleep(self._poll)

    async def _try(self) -> bool:
        leader = await self._look()
        if leader is None:
            transaction = Transaction(
                [CreatedAt(LEADER_KEY, 0)], {LEADER_KEY: self._candidate}, lease=self._lease
            )
            outcome = await self._coordinator.write(transaction)
            term = outcome.revision if outcome.succeeded else 0
        else:
            # An attempt of ours whose answer was lost may have made it.
            term = leader.create_revision if leader.value == self._candidate else 0
        if not term or self._clock.monotonic() >= self._valid_until:
            return False
        self._managers = tuple(
            replace(m, is_leader=m.advertise_addr == self._address) for m in self._managers
        )
        self._changed.clear()
        self.term = term
        return True

    async def _look(self) -> KeyValue | None:
        """The leader key; remembers who is there."""
        entries = {entry.key: entry for entry in await self._coordinator.scan(ELECTION)}
        leader = entries.pop(LEADER_KEY, None)
        try:
            session = msgspec.json.decode(leader.value, type=Candidate).session if leader else ""
            known = [msgspec.json.decode(e.value, type=Candidate) for e in entries.values()]
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"not a placement manager's key: {error}") from error
        self._managers = tuple(
            PlacementManagerNode(c.name, c.address, c.session == session) for c in known
        )
        return leader

    # The lease

    async def _renew_session(self) -> None:
        """Keep the lease, or get one and put our address with it."""
        if self._lease and self._clock.monotonic() < self._renew_at:
            return
        asked = self._clock.monotonic()
        ttl = await self._coordinator.keep_alive(self._lease) if self._lease else 0.0
        if ttl <= 0:
            asked = self._clock.monotonic()
            self._lease, ttl = await self._coordinator.grant(self._ttl)
            self._registered = False
        self._extend(asked, ttl)
        if not self._registered:
            session = str(self._random.uuid())
            self._candidate = msgspec.json.encode(Candidate(self._name, self._address, session))
            await self._coordinator.write(
                Transaction([], {f"{MANAGERS}{self._name}": self._candidate}, lease=self._lease)
            )
            self._registered = True

    def _extend(self, asked: float, ttl: float) -> None:
        """The lease was alive when the answer left, and was asked for at `asked`."""
        self._valid_until = asked + ttl - self._margin
        self._renew_at = asked + ttl / 3

    async def _hold(self) -> None:
        """Until the lease cannot be renewed in time, or somebody deposes us."""
        while self.leading:
            now = self._clock.monotonic()
            if now < self._renew_at:
                try:
                    async with asyncio.timeout(min(self._renew_at, self._valid_until) - now):
                        await self._changed.wait()
                except TimeoutError:
                    pass
                continue
            try:
                async with asyncio.timeout(self._valid_until - now):
                    ttl = await self._coordinator.keep_alive(self._lease)
                if ttl <= 0 or not self.leading:  # over, or answered too late to go on
                    return
                self._extend(now, ttl)
                await self._look()
            except TimeoutError:
                return
            except HeadraceError as error:
                _log.info("lease not renewed: %s", error)
                await self._clock.sleep(self._poll)

    async def _leave(self) -> None:
        """End the session; what is left of it ends with its lease."""
        lease, self._lease = self._lease, 0
        self._valid_until = float("-inf")
        self._managers = tuple(replace(m, is_leader=False) for m in self._managers)
        if not lease:
            return
        try:
            async with asyncio.timeout(self._ttl):
                await self._coordinator.revoke(lease)
        except (TimeoutError, HeadraceError) as error:
            _log.info("lease not given back: %s", error)
