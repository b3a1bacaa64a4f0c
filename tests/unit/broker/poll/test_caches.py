"""What is kept for polls has one bound, and whoever holds most makes room."""

from __future__ import annotations

from headrace.broker.poll.caches import PollCaches
from tests.unit.broker.poll.test_readahead import batch, put
from tests.unit.broker.poll.test_replies import sent


def test_parts_share_one_bound() -> None:
    caches = PollCaches(1_000_000)
    put(caches.read_ahead, 1, batch(0, 1, 300_000))
    put(caches.read_ahead, 2, batch(0, 1, 300_000))
    put(caches.read_ahead, 3, batch(0, 1, 300_000))
    assert caches.read_ahead.bytes == caches.bytes > 900_000, "alone it may have all"
    number = 0
    while caches.replies.bytes < caches.read_ahead.bytes:
        sent(caches.replies, number, [])
        number += 1
        assert caches.bytes <= 1_000_000
    assert not caches.read_ahead.get(1, 0), "the oldest of the larger part"
    assert caches.read_ahead.get(3, 0)
    replies = caches.replies.bytes
    put(caches.read_ahead, 4, batch(0, 1, 400_000))
    assert caches.bytes <= 1_000_000
    assert 0 < caches.replies.bytes <= replies
    assert caches.read_ahead.get(4, 0)


def test_nothing_is_kept_without_a_bound() -> None:
    caches = PollCaches(0)
    put(caches.read_ahead, 1, batch(0, 1))
    assert caches.bytes == 0
