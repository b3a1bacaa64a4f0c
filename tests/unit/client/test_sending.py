"""The gathering producer: when batches go, what is bounded, what a failure does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.client.records import Receipt
from headrace.client.sending import Producer, home_of
from headrace.errors import HeadraceError, InvalidArgumentError, UnavailableError
from headrace.runtime.system import system_runtime
from headrace.wire.iggy.messages.messages import Message, Placed, SentMessages

LONG = 60.0


class Server:
    """Takes batches when it is let."""

    def __init__(self) -> None:
        self.batches: list[tuple[int | None, list[bytes]]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.failure: HeadraceError | None = None
        self.asked = asyncio.Event()

    async def send(self, partition: int | None, messages: list[Message]) -> SentMessages:
        self.asked.set()
        await self.open.wait()
        if self.failure is not None:
            raise self.failure
        first = sum(len(each) for _, each in self.batches)
        self.batches.append((partition, [message.payload for message in messages]))
        return SentMessages((Placed(0, 0, partition or 0, first),))

    async def partitions(self) -> int:
        return 4

    def producer(self, **options: Any) -> Producer:
        return Producer(system_runtime().clock, self.send, self.partitions, **options)


async def test_messages_that_come_together_go_together_in_order() -> None:
    server = Server()
    async with server.producer(linger=LONG, batch_messages_max=100) as producer:
        deliveries = [await producer.send(b"%d" % n) for n in range(250)]
        receipts = [await each for each in deliveries[:200]]
        assert not deliveries[-1].done
    assert [len(each) for _, each in server.batches] == [100, 100, 50]
    assert [b for _, each in server.batches for b in each] == [b"%d" % n for n in range(250)]
    assert receipts[150] == Receipt(0, 150)
    assert await deliveries[-1] == Receipt(0, 249)


async def test_a_message_waits_no_longer_than_it_lingers() -> None:
    server = Server()
    async with server.producer(linger=0.01) as producer:
        assert await (await producer.send(b"one")) == Receipt(0, 0)
    assert server.batches == [(None, [b"one"])]


async def test_a_key_has_its_partition_and_keeps_its_order() -> None:
    server = Server()
    async with server.producer(linger=LONG) as producer:
        for n in range(40):
            await producer.send(b"%d" % n, key=str(n % 8))
        await producer.send(b"there", key="1", partition=3)
    found: dict[int | None, list[bytes]] = {}
    for partition, payloads in server.batches:
        found.setdefault(partition, []).extend(payloads)
    assert sum(map(len, found.values())) == 41
    assert found[3][-1] == b"there"
    for n in range(40):
        assert b"%d" % n in found[home_of(str(n % 8).encode(), 4)]
    for payloads in found.values():
        numbers = [int(each) for each in payloads if each.isdigit()]
        assert numbers == sorted(numbers)


async def test_batches_end_at_their_bytes() -> None:
    server = Server()
    async with server.producer(linger=LONG, batch_bytes_max=1000) as producer:
        for _ in range(6):
            await producer.send(bytes(300))
        await producer.send(bytes(5000))
    assert [len(each) for _, each in server.batches] == [2, 2, 2, 1]


async def test_a_producer_waits_for_a_server_that_does_not_keep_up() -> None:
    server = Server()
    server.open.clear()
    async with server.producer(linger=0, waiting_bytes_max=1000) as producer:
        for _ in range(3):
            await producer.send(bytes(200))
        blocked = asyncio.ensure_future(producer.send(bytes(300)))
        await server.asked.wait()
        assert not blocked.done()
        server.open.set()
        await blocked
    assert sum(len(each) for _, each in server.batches) == 4


async def test_after_a_failure_nothing_overtakes_what_was_lost() -> None:
    server = Server()
    server.failure = UnavailableError("gone")
    producer = await server.producer(linger=LONG, batch_messages_max=2).__aenter__()
    lost = [await producer.send(b"%d" % n) for n in range(2)]
    with pytest.raises(UnavailableError, match="gone"):
        await lost[0]
    server.failure = None
    with pytest.raises(UnavailableError, match="gone"):
        await producer.send(b"later")
    with pytest.raises(UnavailableError, match="gone"):
        await producer.flush()
    await producer.close()
    assert server.batches == []


async def test_a_failure_that_nobody_looked_at_is_told_in_the_end() -> None:
    server = Server()
    server.failure = UnavailableError("gone")
    with pytest.raises(UnavailableError, match="gone"):
        async with server.producer(linger=LONG) as producer:
            await producer.send(b"one")


async def test_an_error_in_the_block_sends_nothing_more_and_waits_for_nothing() -> None:
    server = Server()
    producer = server.producer(linger=LONG)
    deliveries = []

    async def fail() -> None:
        async with producer:
            deliveries.append(await producer.send(b"one"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with pytest.raises(UnavailableError, match="before this was sent"):
        await deliveries[0]
    with pytest.raises(UnavailableError, match="closed"):
        await producer.send(b"two")
    assert server.batches == []


async def test_what_cannot_be_a_message_is_refused_at_once() -> None:
    server = Server()
    with pytest.raises(InvalidArgumentError, match="with"):
        await server.producer().send(b"one")
    async with server.producer() as producer:
        with pytest.raises(InvalidArgumentError, match="at least one byte"):
            await producer.send(b"")
        with pytest.raises(InvalidArgumentError, match="JSON"):
            await producer.send({"x": object()})
    assert server.batches == []
