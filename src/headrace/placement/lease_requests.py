"""The requests for leases of one term: decided, made durable, answered.

Names are independent of each other: requests for different names do not wait for each other, and of
one that changes many names each is answered for itself. What they change together is one
transaction, as far as a transaction goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from headrace.concurrency.locks import KeyedLock
from headrace.errors import HeadraceError, InvalidArgumentError
from headrace.placement.leases import LeaseDecision
from headrace.placement.term import Term
from headrace.runtime.interfaces import Clock
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import status_of

WAIT_MS_MAX = 30_000
"""How long a request for news may wait."""
_LOOK_SECONDS = 1.0
"""Between two looks, while waiting, whether this placement manager still leads."""


class LeaseRequests:
    """What is asked of the leases during one term."""

    def __init__(self, term: Term, clock: Clock) -> None:
        self._term = term
        self._leases = term.state.leases
        self._clock = clock
        self._mutex = KeyedLock()
        self._changed = asyncio.Event()
        self._over = False

    def end(self) -> None:
        """Whoever waits is answered now, and nobody waits any more."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self, action: m.LeaseAction, request: m.LeaseRequest) -> m.LeaseResponse:
        """Of one name."""
        change = m.LeaseChange(name=request.name, action=action, epoch=request.epoch)
        ((outcome, result),) = await self._change(request, (change,))
        if isinstance(outcome, HeadraceError):
            raise outcome
        return m.LeaseResponse(
            granted=result.granted,
            epoch=result.epoch,
            holder=result.holder,
            remaining_ms=result.remaining_ms,
            address=result.address,
            status=m.OK,
        )

    async def change_many(self, request: m.LeaseRequest) -> m.LeaseResponse:
        results = [result for _, result in await self._change(request, request.leases)]
        return self._answer(results)

    async def _change(
        self, request: m.LeaseRequest, changes: Sequence[m.LeaseChange]
    ) -> list[tuple[LeaseDecision | HeadraceError, m.LeaseResult]]:
        async with self._hold(change.name for change in changes):
            now_ms = self._term.monotonic_ms()
            outcomes = self._leases.change_many(
                changes,
                holder=request.holder,
                duration_ms=request.duration_ms,
                address=request.address,
                now_ms=now_ms,
            )
            await self._carry_out([o for o in outcomes if isinstance(o, LeaseDecision)])
            return [
                (outcome, self._result(change.name, now_ms, outcome))
                for change, outcome in zip(changes, outcomes, strict=True)
            ]

    async def release_holder(self, request: m.LeaseRequest) -> m.LeaseResponse:
        """The holder is dead: what it has begins to be free at once. Answered with those names."""
        if not request.holder:
            raise InvalidArgumentError("whose leases are over?")
        names = self._leases.names(request.name, holder=request.holder)
        async with self._hold(names):
            now_ms = self._term.monotonic_ms()
            decisions = self._leases.release_holder(request.holder, names)
            await self._carry_out(decisions)
        results = [self._result(each.record.name, now_ms, each) for each in decisions]
        return self._answer(results)

    async def list(self, request: m.LeaseRequest) -> m.LeaseResponse:
        """All names that begin with the one given; none while nothing differs from what the asker
        knows, for which it may wait."""
        deadline = self._clock.monotonic() + min(request.wait_ms, WAIT_MS_MAX) / 1000
        while True:
            self._term.check_leading()
            now_ms = self._term.monotonic_ms()
            self._leases.on_tick(now_ms)
            left = deadline - self._clock.monotonic()
            if self._leases.version != request.version:
                names = self._leases.names(request.name)
                return self._answer([self._result(name, now_ms) for name in names])
            if left <= 0 or self._over:
                return self._answer(())
            end_ms = self._leases.next_end_ms()
            until_end = left if end_ms is None else max(0.001, (end_ms - now_ms) / 1000)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, until_end, _LOOK_SECONDS)):
                    await self._changed.wait()

    @asynccontextmanager
    async def _hold(self, names: Iterable[str]) -> AsyncIterator[None]:
        """In the order of names, so that two requests never wait for each other."""
        async with AsyncExitStack() as held:
            for name in sorted(set(names)):
                await held.enter_async_context(self._mutex.hold(name))
            yield

    async def _carry_out(self, decisions: Sequence[LeaseDecision]) -> None:
        before = self._leases.version
        await self._term.commit([each for d in decisions for each in d.operations])
        for decision in decisions:
            self._leases.on_decided(decision)
        if self._leases.version != before:
            self._wake()

    def _result(
        self, name: str, now_ms: int, outcome: LeaseDecision | HeadraceError | None = None
    ) -> m.LeaseResult:
        record = self._leases.records.get(name)
        held = record is not None and self._leases.held(name, now_ms)
        return m.LeaseResult(
            name=name,
            granted=isinstance(outcome, LeaseDecision) and outcome.granted,
            epoch=record.epoch if record is not None else -1,
            holder=record.holder if record is not None and held else "",
            remaining_ms=self._leases.remaining_ms(name, now_ms) if held else 0,
            address=record.address if record is not None and held else "",
            status=status_of(outcome) if isinstance(outcome, HeadraceError) else m.OK,
        )

    def _answer(self, results: Sequence[m.LeaseResult]) -> m.LeaseResponse:
        return m.LeaseResponse(leases=tuple(results), version=self._leases.version, status=m.OK)
