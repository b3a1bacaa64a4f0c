from __future__ import annotations

from headrace.broker.catalogue.resources import NEVER, UNLIMITED
from headrace.broker.partitions.retention import Candidate, enforce, plan
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.consumers import StoreConsumerOffset
from headrace.wire.iggy.messages.topics import GetTopic
from headrace.wire.iggy.primitives import Consumer, Strategy
from headrace.wire.sbp.messages import SegmentInfo
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import opened


def segments(*times_ms: int, size: int = 100) -> list[SegmentInfo]:
    return [SegmentInfo(n * 10, n * 10 + 10, size, t) for n, t in enumerate(times_ms)]


def test_expired_segments_go_oldest_first() -> None:
    candidate = Candidate(0, segments(1, 2, 3))
    kept = {"size": 300, "max_size": UNLIMITED}
    assert plan([candidate], expiry_us=1000, now_us=3000, **kept) == {0: 20}
    assert plan([candidate], expiry_us=1000, now_us=1999, **kept) == {}
    assert plan([candidate], expiry_us=NEVER, now_us=10**18, **kept) == {}


def test_a_cap_takes_the_oldest_segment_of_any_partition() -> None:
    candidates = [Candidate(0, segments(5, 6)), Candidate(1, segments(1, 9))]
    kept = {"expiry_us": NEVER, "now_us": 0}
    assert plan(candidates, size=450, max_size=400, **kept) == {1: 10}
    assert plan(candidates, size=450, max_size=300, **kept) == {0: 10, 1: 10}
    assert plan(candidates, size=450, max_size=0, **kept) == {0: 20, 1: 20}
    assert plan(candidates, size=450, max_size=450, **kept) == {}


def test_what_a_consumer_has_not_passed_stays() -> None:
    behind = Candidate(0, segments(1, 2, 3), barrier=15)
    assert plan([behind], size=300, expiry_us=1, max_size=0, now_us=10**9) == {0: 10}


def test_a_hold_has_an_end() -> None:
    """Segments of 1, 2 and 3 ms, due after 1 ms, held 5 ms longer for who has read nothing."""
    behind = Candidate(0, segments(1, 2, 3), barrier=0)
    held = {"size": 300, "expiry_us": 1000, "hold_us_max": 5000}
    assert plan([behind], max_size=UNLIMITED, now_us=6999, **held) == {}
    assert plan([behind], max_size=UNLIMITED, now_us=7000, **held) == {0: 10}
    assert plan([behind], max_size=0, now_us=8500, **held) == {0: 20}
    capped = {"size": 300, "max_size": 0, "expiry_us": NEVER, "hold_us_max": 5000}
    assert plan([behind], now_us=5999, **capped) == {}
    assert plan([behind], now_us=7500, **capped) == {0: 20}
    forever = {**capped, "hold_us_max": 0}
    assert plan([behind], now_us=10**18, **forever) == {}


async def test_topics_forget_what_they_may() -> None:
    async with opened(FakeCluster(segment_batches=1)) as h:
        client = await h.root()
        await client.stream()
        await client.topic(name="brief", expiry=1_000_000)
        await client.topic(name="kept")
        for topic in ("brief", "kept"):
            for n in range(4):
                await client.send(b"%d" % n, topic=topic)
        me = Consumer.single(7)
        await client.call(c.STORE_CONSUMER_OFFSET, StoreConsumerOffset(me, "s", "brief", 0, 1))
        h.clock.now_us_ += 999_999
        assert await enforce(h.broker) == 0
        h.clock.now_us_ += 1
        assert await enforce(h.broker) == 1
        polled = await client.poll(Strategy.first(), topic="brief")
        assert [m.payload for m in polled.messages()] == [b"2", b"3"]
        assert (await client.poll(topic="kept")).count == 4
        h.clock.now_us_ += h.broker.settings.retention_hold_ms_max * 1000
        assert await enforce(h.broker) == 1, "whoever has not read it by now"
        polled = await client.poll(Strategy.first(), topic="brief")
        assert [m.payload for m in polled.messages()] == [b"3"]


async def test_special_values_are_kept_and_answered_resolved() -> None:
    async with opened() as h:
        client = await h.root()
        await client.stream()
        await client.topic(name="default", expiry=0, max_size=0)
        await client.topic(name="never", expiry=NEVER, max_size=UNLIMITED)
        await client.topic(name="custom", expiry=5_000_000, max_size=1 << 30)
        shown = {}
        for name in ("default", "never", "custom"):
            details = await client.call(c.GET_TOPIC, GetTopic("s", name))
            assert details is not None
            shown[name] = (details.topic.message_expiry_us, details.topic.max_size_bytes)
        assert shown == {
            "default": (NEVER, UNLIMITED),
            "never": (NEVER, UNLIMITED),
            "custom": (5_000_000, 1 << 30),
        }
        assert h.broker.catalogue.topic("s", "default").expiry == 0
