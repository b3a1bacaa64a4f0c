"""How much one look into a topic takes, whatever is in it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from headrace.client.iggy import IggyClient
from headrace.web.broker_api import messages as message_api
from headrace.web.broker_api.messages import PAGE_BYTES_MAX, SCANNED_BYTES_MAX, Search, _collect
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.messages.topics import PartitionInfo
from headrace.wire.iggy.primitives import Strategy

MIB = 1 << 20


class Polled:
    def __init__(self, messages: list[Message]) -> None:
        self._messages = messages

    def messages(self) -> list[Message]:
        return self._messages


class Log:
    """A partition with messages of these sizes; a poll gives up to 16 MiB, as the broker's."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.polled_bytes = 0

    async def poll(
        self, stream: str, topic: str, *, partition: int, strategy: Strategy, count: int
    ) -> Polled:
        found: list[Message] = []
        size = 0
        for offset in range(strategy.value, min(strategy.value + count, len(self.sizes))):
            found.append(Message(bytes(self.sizes[offset]), offset=offset))
            size += self.sizes[offset]
            if size >= 16 * MIB:
                break
        self.polled_bytes += size
        return Polled(found)

    async def look(
        self, *, limit: int = 500, offset: int | None = None, words: bytes = b""
    ) -> tuple[list[int], int]:
        partition = PartitionInfo(
            id=0,
            created_at_us=0,
            segments_count=1,
            current_offset=len(self.sizes) - 1,
            size_bytes=sum(self.sizes),
            messages_count=len(self.sizes),
        )
        search = Search(
            stream="s", topic="t", partition=partition, limit=limit, offset=offset, time_ms=None,
            words=words, wanted="auto",
        )  # fmt: skip
        found, _, next_offset = await _collect(cast(IggyClient, cast(Any, self)), search)
        assert sum(len(one.payload) for one in found) <= max(PAGE_BYTES_MAX, max(self.sizes))
        return [one.offset for one in found], next_offset


async def test_a_page_of_large_messages_is_cut_by_bytes() -> None:
    log = Log([MIB] * 500)
    assert await log.look(offset=0) == ([*range(8)], 8)
    assert await log.look(offset=8) == ([*range(8, 16)], 16)
    assert await log.look() == ([*range(493, 500)], 500)
    assert log.polled_bytes < 64 * MIB


async def test_one_message_larger_than_a_page_comes_alone() -> None:
    log = Log([10, 10 * MIB, 10, 10])
    assert await log.look(offset=0) == ([0], 1)
    assert await log.look(offset=1) == ([1], 2)
    assert await log.look(offset=2) == ([2, 3], 4)
    assert await log.look() == ([2, 3], 4)


async def test_small_messages_come_as_asked() -> None:
    log = Log([100] * 1000)
    assert await log.look(limit=50) == ([*range(950, 1000)], 1000)
    assert await log.look(limit=50, offset=7) == ([*range(7, 57)], 57)


async def test_a_search_ends_after_so_many_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_api, "matches", lambda *_: False)
    log = Log([MIB] * 500)
    found, next_offset = await log.look(offset=0, words=b"nothing")
    assert found == []
    assert 64 <= next_offset < 100  # where to go on
    assert log.polled_bytes < SCANNED_BYTES_MAX + 32 * MIB
