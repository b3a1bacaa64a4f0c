"""Short SENDs as their readers get them: what is found is right, whole, in order and bounded."""

from __future__ import annotations

import random

from headrace.broker.poll.recent_sends import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, RecentSends

HEADER = b"h" * 256


def add(recent: RecentSends, log: int, first: int, count: int, length: int = 100) -> bytes:
    """What a reader is to get of it."""
    frames = bytes([(log + first) % 251]) * (length * count)
    recent.add(log, first, count, HEADER, memoryview(frames))
    return HEADER + frames


def found(recent: RecentSends, log: int, first: int, end: int) -> list[tuple[int, int, bytes]]:
    return [(part.first, part.end, bytes(part.data)) for part in recent.parts(log, first, end)]


def test_batches_that_follow_each_other_are_one_piece() -> None:
    recent = RecentSends(1 << 20)
    made = [add(recent, 1, 10 * n, 10) for n in range(10)]
    assert found(recent, 1, 0, 100) == [(0, 100, b"".join(made))]
    assert found(recent, 1, 30, 70) == [(30, 70, b"".join(made[3:7]))]
    assert found(recent, 1, 35, 75) == [(40, 70, b"".join(made[4:7]))], "whole ones only"
    assert found(recent, 1, 31, 39) == []
    assert found(recent, 1, 95, 200) == []
    assert found(recent, 1, 100, 200) == []
    assert found(recent, 2, 0, 100) == []


def test_others_between_them_are_left_out() -> None:
    recent = RecentSends(1 << 20)
    before = add(recent, 1, 0, 10)
    after = [add(recent, 1, 15, 5), add(recent, 1, 20, 5)]
    assert found(recent, 1, 0, 25) == [(0, 10, before), (15, 25, b"".join(after))]
    assert found(recent, 1, 12, 22) == [(15, 20, after[0])]
    late = add(recent, 1, 10, 5)
    assert late not in found(recent, 1, 0, 25)[0]
    assert len(found(recent, 1, 0, 25)) == 2, "one that comes late has no place any more"


def test_logs_have_memory_of_their_own_and_more_the_more_they_get() -> None:
    recent = RecentSends(64 << 20)
    for log in range(100):
        add(recent, log, 0, 5)
    assert recent.bytes == 100 * CHUNK_BYTES_MIN
    expected = [add(recent, 7, 5 + 10 * n, 10) for n in range(1000)]
    assert recent.bytes < 100 * CHUNK_BYTES_MIN + 1000 * len(expected[0]) + CHUNK_BYTES_MAX
    parts = found(recent, 7, 5, 10_005)
    assert b"".join(data for _, _, data in parts) == b"".join(expected)
    assert len(parts) < 10
    assert len(add(recent, 7, 10_005, 10, length=CHUNK_BYTES_MAX)) > CHUNK_BYTES_MAX
    assert found(recent, 7, 10_005, 10_015)[0][:2] == (10_005, 10_015), "a chunk of its own"


def test_what_is_old_makes_room() -> None:
    recent = RecentSends(10 * CHUNK_BYTES_MIN)
    for n in range(2000):
        add(recent, n % 3, 10 * (n // 3), 10)
        assert recent.bytes <= 10 * CHUNK_BYTES_MIN
    assert found(recent, 0, 0, 10) == []
    (newest,) = found(recent, 0, 6660, 6670)
    assert newest[:2] == (6660, 6670)
    nothing = RecentSends(CHUNK_BYTES_MIN - 1)
    add(nothing, 0, 0, 10)
    assert nothing.bytes == 0
    assert found(nothing, 0, 0, 10) == []


def test_memory_is_used_again_when_nobody_views_it() -> None:
    recent = RecentSends(8 * CHUNK_BYTES_MIN)
    memories: list[object] = []
    handed_out: list[tuple[memoryview, bytes]] = []
    for n in range(2000):
        made = add(recent, 1, 10 * n, 10)
        (part,) = recent.parts(1, 10 * n, 10 * n + 10)
        if not memories or part.data.obj is not memories[-1]:
            memories.append(part.data.obj)
            if len(memories) % 3 == 0:  # this one's
                handed_out.append((part.data, made))
    assert all(data == made for data, made in handed_out), "a reply on its way is left alone"
    assert len({id(memory) for memory in memories}) < len(memories) * 2 // 3


def test_any_order_and_any_range() -> None:
    chance = random.Random(5)
    for _ in range(30):
        recent, sent, end = RecentSends(chance.choice((80_000, 1 << 20))), {}, 0
        for _ in range(chance.randrange(1, 200)):
            end += chance.choice((0, 0, 0, 0, 1, 7))  # sent by others
            count = chance.randrange(1, 12)
            sent[end] = (end + count, add(recent, 1, end, count, chance.randrange(1, 400)))
            end += count
        kept = dict(_split(found(recent, 1, 0, end), sent))
        newest = list(sent)[-len(kept) :]
        assert list(kept) == newest, "the newest, without exception"
        for _ in range(50):
            first = chance.randrange(end)
            last = chance.randrange(first, end + 1)
            wanted = {at: data for at, data in kept.items() if at >= first and sent[at][0] <= last}
            assert dict(_split(found(recent, 1, first, last), sent)) == wanted


def _split(
    parts: list[tuple[int, int, bytes]], sent: dict[int, tuple[int, bytes]]
) -> list[tuple[int, bytes]]:
    """The batches of the parts, which are where they say and nothing else."""
    batches = []
    for first, end, data in parts:
        while first < end:
            after, expected = sent[first]
            assert data.startswith(expected)
            batches.append((first, expected))
            first, data = after, data[len(expected) :]
        assert first == end
        assert not data
    return batches
