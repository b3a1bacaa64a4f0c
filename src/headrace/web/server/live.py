"""What browsers see change: one sampler for all of them, server-sent events to each.

A *topic* of events has one latest value, no queue: a connection that reads slowly gets the newest
value when it comes round, and never holds more than one frame. What a user may see of a value is
decided when it is sent; those who see the same share the encoded bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from headrace.errors import HeadraceError, ThrottledError, UnauthenticatedError
from headrace.observability.logging import get_logger
from headrace.runtime import Runtime
from headrace.web.server.logins import Login

log = get_logger(__name__)

LISTENERS_MAX = 64
CONNECTION_SECONDS_MAX = 300.0  # then it connects again
QUIET_SECONDS = 15.0  # a comment after so long: proxies end connections that say nothing
TICK_SECONDS = 0.5
_SCOPES_MAX = 32

View: TypeAlias = Callable[[Login], Any]
"""The value as this user may see it; None: they may not, and are sent nothing."""
Sample: TypeAlias = Callable[[], Awaitable[View]]


@dataclass(slots=True)
class _Latest:
    version: int
    view: View
    encoded: dict[Hashable, bytes] = field(default_factory=dict)

    def frame(self, topic: str, login: Login) -> bytes:
        scope = (login.may_manage, login.permissions)
        found = self.encoded.get(scope)
        if found is None:
            value = self.view(login)
            data = b"" if value is None else msgspec.json.encode(value)
            found = b"event: %s\ndata: %s\n\n" % (topic.encode(), data) if data else b""
            if len(self.encoded) >= _SCOPES_MAX:
                self.encoded.clear()
            self.encoded[scope] = found
        return found


class Live:
    """The latest value of each topic, and who waits for the next."""

    def __init__(self, runtime: Runtime) -> None:
        self._clock = runtime.clock
        self._latest: dict[str, _Latest] = {}
        self._listeners: dict[asyncio.Event, frozenset[str]] = {}
        self._closed = False

    def publish(self, topic: str, view: View) -> None:
        before = self._latest.get(topic)
        self._latest[topic] = _Latest(1 if before is None else before.version + 1, view)
        for changed, wanted in self._listeners.items():
            if topic in wanted:
                changed.set()

    def published(self) -> set[str]:
        return set(self._latest)

    def wanted(self, topic: str) -> bool:
        """Whether anybody listens to it."""
        return any(topic in topics for topics in self._listeners.values())

    @property
    def full(self) -> bool:
        return len(self._listeners) >= LISTENERS_MAX

    async def frames(
        self, who: Callable[[], Awaitable[Login]], topics: Collection[str]
    ) -> AsyncIterator[bytes]:
        """Until the server stops, the connection is old, or `who`, which is asked again before
        anything is sent, is nobody any more. ThrottledError: too many listen."""
        if self.full:
            raise ThrottledError(f"at most {LISTENERS_MAX} pages are fed at a time")
        changed = asyncio.Event()
        self._listeners[changed] = frozenset(topics)
        try:
            seen: dict[str, int] = {}
            ends = self._clock.monotonic() + CONNECTION_SECONDS_MAX
            yield b"retry: 1000\n\n"
            while not self._closed and self._clock.monotonic() < ends:
                changed.clear()
                newer = self._newer(topics, seen)
                if newer:
                    try:
                        login = await who()
                    except UnauthenticatedError:
                        return
                    for topic, latest in newer.items():
                        seen[topic] = latest.version
                        if frame := latest.frame(topic, login):
                            yield frame
                try:
                    async with asyncio.timeout(QUIET_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    yield b": still here\n\n"
        finally:
            del self._listeners[changed]

    def _newer(self, topics: Collection[str], seen: dict[str, int]) -> dict[str, _Latest]:
        found = {topic: self._latest.get(topic) for topic in topics}
        return {
            topic: latest
            for topic, latest in found.items()
            if latest is not None and latest.version != seen.get(topic)
        }

    def close(self) -> None:
        self._closed = True
        for changed in self._listeners:
            changed.set()


@dataclass(slots=True)
class _Sampled:
    topic: str
    sample: Sample
    seconds: float
    idle_seconds: float
    also: tuple[str, ...]


class Sampler:
    """Takes samples for all pages. `add` before `start`; one that takes long delays no other."""

    def __init__(self, runtime: Runtime, live: Live) -> None:
        self._clock = runtime.clock
        self._live = live
        self._sampled: list[_Sampled] = []
        self._tasks: list[asyncio.Task[None]] = []

    def add(
        self,
        topic: str,
        sample: Sample,
        *,
        seconds: float,
        idle_seconds: float = float("inf"),
        also: tuple[str, ...] = (),
    ) -> None:
        """Every `seconds` while somebody listens to it (or `also` to these), else every
        `idle_seconds`."""
        self._sampled.append(_Sampled(topic, sample, seconds, idle_seconds, also))

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(one)) for one in self._sampled]

    async def close(self) -> None:
        self._live.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, one: _Sampled) -> None:
        taken: float | None = None
        while True:
            wanted = any(self._live.wanted(topic) for topic in (one.topic, *one.also))
            pause = one.seconds if wanted else one.idle_seconds
            now = self._clock.monotonic()
            if pause < float("inf") and (taken is None or now >= taken + pause):
                taken = now
                await self._take(one)
            await self._clock.sleep(TICK_SECONDS)

    async def _take(self, one: _Sampled) -> None:
        try:
            self._live.publish(one.topic, await one.sample())
        except HeadraceError as error:
            log.info("not sampled", topic=one.topic, reason=str(error))
