"""Server-sent events: the newest value for each, as far as they may see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.errors import ThrottledError, UnauthenticatedError, UnavailableError
from headrace.runtime.system import system_runtime
from headrace.web.server import live as module
from headrace.web.server.live import Live, Sampler, View
from headrace.web.server.logins import Login
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions

ROOT = Login("root", may_manage=True, permissions=Permissions(GlobalPermissions.all()))
GUEST = Login("guest", may_manage=False)


async def frame(frames: AsyncIterator[bytes]) -> bytes:
    async with asyncio.timeout(5):
        return await anext(frames)


async def opened(live: Live, login: Login, *topics: str) -> AsyncIterator[bytes]:
    async def who() -> Login:
        return login

    frames = live.frames(who, topics)
    assert await frame(frames) == b"retry: 1000\n\n"
    return frames


async def test_rights_that_were_taken_away_are_gone_with_the_next_frame() -> None:
    live, logins = Live(system_runtime()), [ROOT, GUEST]

    async def who() -> Login:
        if not logins:
            raise UnauthenticatedError("deleted")
        return logins.pop(0)

    frames = live.frames(who, ("a",))
    await frame(frames)
    for expected in (b"event: a\ndata: true\n\n", b"event: a\ndata: false\n\n"):
        live.publish("a", lambda login: login.may_manage)
        assert await frame(frames) == expected
    live.publish("a", lambda login: login.may_manage)
    with pytest.raises(StopAsyncIteration):
        await frame(frames)
    live.close()


async def test_a_slow_reader_gets_the_newest_only() -> None:
    live = Live(system_runtime())
    frames = await opened(live, ROOT, "a", "b")
    for number in range(1000):
        live.publish("a", lambda _login, number=number: number)  # type: ignore[misc]  # mypy cannot infer a lambda's default
    live.publish("c", lambda _login: "nobody asked")
    live.publish("b", lambda _login: {"x": 1})
    assert await frame(frames) == b"event: a\ndata: 999\n\n"
    assert await frame(frames) == b'event: b\ndata: {"x":1}\n\n'
    waits = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    live.publish("a", lambda _login: 7)
    assert await waits == b"event: a\ndata: 7\n\n"
    live.close()
    with pytest.raises(StopAsyncIteration):
        await frame(frames)
    assert not live.wanted("a")


async def test_everybody_sees_what_they_may_and_it_is_made_once_for_all() -> None:
    live, made = Live(system_runtime()), []

    def view(login: Login) -> list[str]:
        made.append(login.username)
        return ["secret"] if login.permissions else []

    streams = [await opened(live, login, "a") for login in (ROOT, GUEST, ROOT)]
    live.publish("a", view)
    found = [await frame(one) for one in streams]
    assert [b"secret" in one for one in found] == [True, False, True]
    assert made == ["root", "guest"]
    live.close()


async def test_there_is_room_for_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTENERS_MAX", 2)
    live = Live(system_runtime())
    _kept = [await opened(live, ROOT, "a") for _ in range(2)]
    with pytest.raises(ThrottledError):
        await opened(live, ROOT, "a")
    live.close()
    for one in _kept:
        with pytest.raises(StopAsyncIteration):
            await frame(one)
    await opened(Live(system_runtime()), ROOT, "a")


async def test_what_says_nothing_for_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.01)
    frames = await opened(Live(system_runtime()), ROOT, "a")
    assert await frame(frames) == b": still here\n\n"


async def test_a_sample_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TICK_SECONDS", 0.001)
    runtime = system_runtime()
    live = Live(runtime)
    sampler = Sampler(runtime, live)
    taken = 0

    async def fails() -> View:
        raise UnavailableError("the broker is away")

    async def works() -> View:
        nonlocal taken
        taken += 1
        value = taken
        return lambda _login: value

    sampler.add("bad", fails, seconds=0.0)
    sampler.add("good", works, seconds=0.0)
    sampler.add("unwanted", works, seconds=0.0)
    sampler.add("other", works, seconds=0.0, also=("good",))
    frames = await opened(live, ROOT, "bad", "good")
    sampler.start()
    assert await frame(frames) == b"event: good\ndata: 1\n\n"
    assert (await frame(frames)).startswith(b"event: good\n")
    await sampler.close()
    seen = live.published()
    assert {"good", "other"} == seen, "what nobody listens to is not sampled"
