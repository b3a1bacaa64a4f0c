"""A poll like the last one is answered at once, and never otherwise than the long way would."""

from __future__ import annotations

from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.consumers import StoreConsumerOffset
from headrace.wire.iggy.messages.messages import PolledMessages
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import DeleteTopic, PurgeTopic
from headrace.wire.iggy.primitives import Consumer, Strategy
from tests.unit.broker.harness import Client, code_of, opened

BATCHES, SIZE = 4, 5
COUNT = BATCHES * SIZE


def offsets(polled: PolledMessages) -> list[int]:
    return [message.offset for message in polled.messages()]


async def filled(client: Client) -> None:
    await client.stream()
    await client.topic()
    for batch in range(BATCHES):
        await client.send(*(b"m%d" % n for n in range(batch * SIZE, (batch + 1) * SIZE)))


async def test_the_next_poll_of_the_same_place_is_answered_at_once() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        whole = await client.poll()
        assert client.answered_at_once == 0
        for first in range(COUNT):
            polled = await client.poll(Strategy.offset(first), 3)
            assert offsets(polled) == offsets(whole)[first : first + 3]
            assert polled.current_offset == whole.current_offset
        assert client.answered_at_once == COUNT


async def test_new_messages_are_seen_and_the_end_is_the_end() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        await client.poll()
        assert offsets(await client.poll(Strategy.offset(COUNT))) == []
        await client.send(b"new")
        polled = await client.poll(Strategy.offset(COUNT))
        assert (offsets(polled), polled.current_offset) == ([COUNT], COUNT)


async def test_next_follows_the_stored_offset() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        consumer = Consumer.single(7)
        await client.poll(consumer=consumer)
        assert offsets(await client.poll(Strategy.next(), 2, consumer=consumer)) == [0, 1]
        await client.call(c.STORE_CONSUMER_OFFSET, StoreConsumerOffset(consumer, "s", "t", 0, 6))
        assert offsets(await client.poll(Strategy.next(), 2, consumer=consumer)) == [7, 8]
        assert client.answered_at_once == 2


async def test_a_poll_that_commits_goes_the_long_way() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        for first in range(3):
            polled = await client.poll(Strategy.next(), 2, commit=True)
            assert offsets(polled) == [2 * first, 2 * first + 1]
        assert client.answered_at_once == 0


async def test_what_is_deleted_or_purged_is_not_served_from_memory() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        await client.poll()
        await client.call(c.PURGE_TOPIC, PurgeTopic("s", "t"))
        assert offsets(await client.poll()) == []
        await client.call(c.DELETE_TOPIC, DeleteTopic("s", "t"))
        assert await code_of(client.poll()) == 2010


async def test_rights_that_are_taken_away_are_gone_at_once() -> None:
    async with opened() as h:
        root = await h.root()
        await filled(root)
        everywhere = u.Permissions(u.GlobalPermissions(poll_messages=True))
        await root.call(
            c.CREATE_USER, u.CreateUser("reader", "secret", u.UserStatus.ACTIVE, everywhere)
        )
        reader = h.connect()
        await reader.login("reader", "secret")
        for _ in range(2):
            assert offsets(await reader.poll()) == list(range(COUNT))
        assert reader.answered_at_once == 1
        await root.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions("reader", None))
        assert await code_of(reader.poll()) == 41


async def test_who_logged_out_gets_nothing() -> None:
    async with opened() as h:
        client = await h.root()
        await filled(client)
        await client.poll()
        await client.call(c.LOGOUT_USER, Empty())
        assert await code_of(client.poll()) == 40
