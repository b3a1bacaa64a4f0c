"""Leadership by lease: a broker or a controller acts only while its lease at the placement manager
holds.

The lease counts from the moment *before* the request for it was sent, so the local end comes before
the placement manager's whatever the network did. While no placement manager answers, the lease is
asked for again and again until it runs out. What the last holder knows about its own stop
(`holder.json` in its folder) says whether streams may go on without being sealed.

On one machine nobody else wants the lease. There a holder that did not ask in time (the process
stood still, the machine was overloaded) says nothing and asks on: under the same epoch the
placement manager grants it only if nobody had it meanwhile, so all that the holder knows still is
so. Who waits for an answer waits until then (`regain`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import msgspec

from headrace.errors import (
    DeadlineError,
    HeadraceError,
    NotFoundError,
    NotLeaderError,
    StateError,
)
from headrace.observability.logging import get_logger
from headrace.runtime.interfaces import Executor, Runtime
from headrace.wire.sbp.messages import LeaseResponse

log = get_logger(__name__)

_RETRY_SECONDS_MAX = 1.0


class LeaseClient(Protocol):
    """The part of `SbpClient` this needs."""

    async def lease(
        self, name: str, holder: str, duration_ms: int, address: str = "", epoch: int = -1
    ) -> LeaseResponse: ...

    async def release(self, name: str, holder: str, epoch: int) -> object: ...


class Holder(msgspec.Struct):
    """Who we are to the placement manager, and whether our last stop was clean."""

    holder: str
    clean_epoch: int = -1
    """Epoch under which everything was acknowledged and stopped; -1 while running."""

    def continues(self, epoch: int) -> bool:
        """Whether the new epoch follows our clean stop with nobody in between."""
        return 0 <= self.clean_epoch <= epoch <= self.clean_epoch + 1


class HolderFile:
    def __init__(self, runtime: Runtime, folder: str, executor: Executor) -> None:
        self._runtime = runtime
        self._folder = folder
        self._path = f"{folder}/holder.json"
        self._executor = executor

    async def load(self) -> Holder:
        return await self._executor.run(self._load)

    def _load(self) -> Holder:
        try:
            return msgspec.json.decode(self._runtime.disk.read(self._path), type=Holder)
        except (NotFoundError, msgspec.DecodeError):
            self._runtime.disk.make_folder(self._folder)
            return Holder(holder=str(self._runtime.random.uuid()))

    async def save(self, holder: Holder) -> None:
        data = msgspec.json.encode(holder)
        await self._executor.run(lambda: self._runtime.disk.write_atomic(self._path, data))


class Leadership:
    def __init__(
        self,
        runtime: Runtime,
        client: LeaseClient,
        *,
        name: str,
        holder: str,
        duration_ms: int,
        on_lost: Callable[[], None],
        on_refused: Callable[[LeaseResponse], None] | None = None,
        alone: bool = False,
    ) -> None:
        """`on_refused` hears who holds the lease each time it is asked for in vain. `alone`: there
        is nobody to take over, so a lease that ran out is asked for again."""
        self._clock = runtime.clock
        self._client = client
        self._name = name
        self._holder = holder
        self._duration_ms = duration_ms
        self._on_lost = on_lost
        self._on_refused = on_refused
        self._alone = alone
        self._regained_or_lost = asyncio.Event()
        """Set when a lease that had run out was granted again, or is lost."""
        self._address = ""
        self._until = float("-inf")
        self._lost = False
        self._renewing: asyncio.Task[None] | None = None
        self.epoch = -1

    @property
    def holds(self) -> bool:
        return self._clock.monotonic() < self._until

    def check(self) -> None:
        if self._clock.monotonic() >= self._until:
            raise NotLeaderError("the lease is not held", lease=self._name)

    async def regain(self) -> None:
        """Returns when the lease is held, at once if it is. NotLeaderError when it is not to be."""
        try:
            async with asyncio.timeout(self._duration_ms / 1000):
                while self._alone and not self._lost and not self.holds:
                    self._regained_or_lost.clear()
                    await self._regained_or_lost.wait()
        except TimeoutError:
            pass  # the placement manager stands still; said below
        self.check()

    async def acquire(self) -> int:
        """Wait until the lease is ours; returns its epoch."""
        while True:
            remaining_ms = 0
            try:
                answer = await self._ask(self._duration_ms / 1000)
                if answer.granted:
                    self.epoch = answer.epoch
                    if self.holds:
                        self._renewing = asyncio.create_task(self._renew())
                        return self.epoch
                    continue  # the answer took as long as the lease: renew it
                self.epoch = -1
                remaining_ms = answer.remaining_ms
                if self._on_refused is not None:
                    self._on_refused(answer)
            except StateError:  # the placement manager is not up yet, or has no leader itself
                remaining_ms = 100
            await self._clock.sleep(min(max(remaining_ms / 1000, 0.02), _RETRY_SECONDS_MAX))

    async def announce(self, address: str) -> None:
        """Tell the placement manager where we serve."""
        self._address = address
        await self._ask(self._duration_ms / 1000)

    async def _ask(self, timeout: float) -> LeaseResponse:
        """Within `timeout` seconds: the lease counts from before the request, so an answer that
        took long is worth little. Asking again counts from later."""
        asked = self._clock.monotonic()
        try:
            async with asyncio.timeout(max(timeout, 0.001)):
                answer = await self._client.lease(
                    self._name, self._holder, self._duration_ms, self._address, self.epoch
                )
        except TimeoutError:
            raise DeadlineError("no answer in time", lease=self._name) from None
        if answer.granted and self.epoch in (-1, answer.epoch) and not self._lost:
            self._until = max(self._until, asked + self._duration_ms / 1000)
            self._regained_or_lost.set()
        return answer

    async def _renew(self) -> None:
        """Ask in good time, and again soon while no placement manager leads, until the end."""
        third = self._duration_ms / 3000
        pause = third
        while self._alone or self.holds:
            await self._clock.sleep(min(pause, max(self._left(), third / 10 if self._alone else 0)))
            left = self._left()
            if left <= 0 and not self._alone:
                break
            try:
                answer = await self._ask(third / 2 if self._alone else min(third / 2, left))
            except HeadraceError:
                pause = third / 10
                continue
            if not answer.granted or answer.epoch != self.epoch:
                break
            if left <= 0:
                log.warning("lease ran out and was held again", lease=self._name, late=-left)
            pause = third
        self.give_up()
        self._on_lost()

    def _left(self) -> float:
        return self._until - self._clock.monotonic()

    def give_up(self) -> None:
        """The lease is another's, whatever our clock says and answers on their way will."""
        self._lost = True
        self._until = float("-inf")
        self._regained_or_lost.set()

    async def close(self) -> None:
        """Give the lease back, so that a successor need not wait for its end."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
            self._renewing = None
        if self.holds:
            self._until = float("-inf")
            try:
                await self._client.release(self._name, self._holder, self.epoch)
            except StateError:
                return  # it runs out by itself
