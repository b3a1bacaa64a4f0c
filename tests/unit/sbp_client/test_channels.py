from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from headrace.errors import RemoteProtocolError, UnavailableError
from headrace.net.sbp_server import Payload, Reply
from headrace.runtime.interfaces import Buffer
from headrace.sbp_client.channels import ChannelPool, PieceReader, ReconnectingChannel
from headrace.sbp_client.client import RangeMap
from headrace.wire.sbp.messages import Message, Range
from headrace.wire.sbp.opcodes import Code


class FakeChannel:
    def __init__(self, name: str) -> None:
        self.name = name
        self.error: UnavailableError | None = None
        self.hold: asyncio.Event | None = None
        self.calls = 0
        self.closed = False

    async def call(
        self, code: Code, message: Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        self.calls += 1
        if self.hold is not None:
            await self.hold.wait()
        if self.error is not None:
            raise self.error
        return Reply(message)

    async def close(self) -> None:
        self.closed = True


class Factory:
    def __init__(self) -> None:
        self.made: list[FakeChannel] = []

    async def __call__(self) -> FakeChannel:
        await asyncio.sleep(0)
        self.made.append(FakeChannel(f"channel {len(self.made)}"))
        return self.made[-1]


async def ask(link: ReconnectingChannel) -> Reply:
    return await link.call(Code.HEARTBEAT, Range())


async def test_one_channel_serves_concurrent_calls() -> None:
    factory = Factory()
    link = ReconnectingChannel(factory)
    await asyncio.gather(*(ask(link) for _ in range(5)))
    assert [channel.calls for channel in factory.made] == [5]
    await link.close()
    assert factory.made[0].closed


async def test_a_broken_channel_is_replaced() -> None:
    factory = Factory()
    link = ReconnectingChannel(factory)
    await ask(link)
    factory.made[0].error = UnavailableError("lost")
    with pytest.raises(UnavailableError):
        await ask(link)  # it may have been carried out: the caller decides
    assert factory.made[0].closed
    await ask(link)
    assert factory.made[1].calls == 1
    await link.close()


async def test_a_call_that_was_never_sent_is_repeated_once() -> None:
    factory = Factory()
    link = ReconnectingChannel(factory)
    await ask(link)
    factory.made[0].error = UnavailableError("going away", refused=True)
    await ask(link)
    assert [channel.calls for channel in factory.made] == [2, 1]
    await link.close()


async def test_a_new_channel_that_refuses_is_not_tried_again() -> None:
    class Refusing(Factory):
        async def __call__(self) -> FakeChannel:
            channel = await super().__call__()
            channel.error = UnavailableError("no", refused=True)
            return channel

    factory = Refusing()
    link = ReconnectingChannel(factory)
    with pytest.raises(UnavailableError):
        await ask(link)
    assert len(factory.made) == 1
    await link.close()


async def test_a_forgotten_channel_finishes_its_calls() -> None:
    factory = Factory()
    link = ReconnectingChannel(factory)
    await ask(link)
    old = factory.made[0]
    old.hold = asyncio.Event()
    waiting = asyncio.create_task(ask(link))
    await asyncio.sleep(0)
    link.forget(old)
    await ask(link)
    closed_early = old.closed
    old.hold.set()
    await waiting
    assert (closed_early, old.closed) == (False, True)
    await link.close()


async def test_connecting_has_the_time_of_the_call() -> None:
    async def never() -> FakeChannel:
        await asyncio.Event().wait()
        raise AssertionError

    link = ReconnectingChannel(never)
    with pytest.raises(UnavailableError):
        await link.channel(timeout=0.01)
    with pytest.raises(UnavailableError):
        await link.call(Code.HEARTBEAT, Range(), timeout=0.01)
    await link.close()


async def test_forgotten_channels_without_a_call_are_closed_with_the_next() -> None:
    factory = Factory()
    link = ReconnectingChannel(factory)
    await ask(link)
    link.forget(factory.made[0])
    assert not factory.made[0].closed
    await ask(link)
    assert [channel.closed for channel in factory.made] == [True, False]
    await link.close()


async def test_a_closed_link_makes_no_channel() -> None:
    link = ReconnectingChannel(Factory())
    await link.close()
    with pytest.raises(UnavailableError):
        await ask(link)


async def test_links_are_kept_by_address() -> None:
    factory = Factory()
    links = ChannelPool(lambda address: factory)
    assert links.to("a:1") is links.to("a:1")
    assert links.to("a:1") is not links.to("b:1")
    with pytest.raises(UnavailableError):
        links.to("")
    await links.close()


@pytest.mark.parametrize("lengths", [[3, 4, 5], [12], [1] * 12, [0, 6, 0, 6]])
def test_pieces_are_taken_without_copying(lengths: list[int]) -> None:
    pieces: list[Buffer] = [b"abc", bytearray(b"defg"), memoryview(b"hijkl")]
    reader = PieceReader(pieces)
    taken = [b"".join(reader.take(length)) for length in lengths]
    assert b"".join(taken) == b"abcdefghijkl"
    assert [len(each) for each in taken] == lengths
    with pytest.raises(RemoteProtocolError):
        reader.take(1)


def test_a_whole_piece_is_handed_over_as_it_is() -> None:
    piece = bytearray(b"abc")
    (taken,) = PieceReader([piece]).take(3)
    assert taken is piece


def ranges(*bounds: tuple[int, int, int]) -> RangeMap:
    return RangeMap(
        Range(stream_id=1, range_index=i, start_offset=s, end_offset=e) for i, s, e in bounds
    )


def test_range_map_finds_ranges_by_offset() -> None:
    found = ranges((3, 9, -1), (0, 2, 5), (1, 5, 5), (2, 5, 9))
    assert found.start == 2
    indexes = {offset: found.containing(offset) for offset in (1, 2, 4, 5, 8, 9, 99)}
    assert {o: r.range_index if r else None for o, r in indexes.items()} == {
        1: None, 2: 0, 4: 0, 5: 2, 8: 2, 9: 3, 99: 3,
    }  # fmt: skip
    writable = found.writable()
    assert writable is not None
    assert writable.range_index == 3


def test_range_map_after_a_seal() -> None:
    known = ranges((0, 0, 5), (1, 5, -1))
    new = Range(stream_id=1, range_index=2, start_offset=8, end_offset=-1)
    after = known.succeeded_by(new)
    assert [(r.start_offset, r.end_offset) for r in after.ranges] == [(0, 5), (5, 8), (8, -1)]
    assert all(a.end_offset == b.start_offset for a, b in pairwise(after.ranges))
    assert ranges((0, 0, 5)).writable() is None
    assert ranges((0, 0, 5)).containing(5) is None
    assert RangeMap([]).writable() is None
