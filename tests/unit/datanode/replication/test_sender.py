"""One sender, many ranges, one replica's node that answers as it is told."""

from __future__ import annotations

import asyncio
from itertools import count

import msgspec

from headrace.errors import (
    CorruptionError,
    HeadraceError,
    RangeNotFoundError,
    SealedError,
    ThrottledError,
    UnavailableError,
)
from headrace.runtime.interfaces import Runtime
from headrace.storage.layout import RangeKey
from headrace.wire.sbp.errors import AlreadyDurableError, AppendPendingError, NotPrimaryError
from tests.unit.datanode.fake_replica import SETTINGS, Fed, Sending, simulate


async def settle(seconds: float = 0.02) -> None:
    await asyncio.sleep(seconds)


def bases(sending: Sending, stream_id: int = 1) -> list[int]:
    """What arrived of one range, committed offsets left out."""
    return [
        base
        for frame in sending.node.frames
        for key, base in frame
        if key.stream_id == stream_id and base >= 0
    ]


def test_appends_of_one_turn_share_a_frame_over_all_ranges() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            ranges = [sending.add(stream_id) for stream_id in range(3)]
            await settle()
            for _ in range(4):
                for fed in ranges:
                    fed.append()
            await settle()
            (frame,) = [f for f in sending.node.frames if any(base >= 0 for _, base in f)]
            assert len(frame) == 12
            for fed in ranges:
                assert [base for key, base in frame if key == fed.log.key] == [0, 1, 2, 3]
                assert fed.source.held == [1, 2, 3, 4]

    simulate(body)


def test_while_frames_are_in_flight_the_next_gathers() -> None:
    async def body(runtime: Runtime) -> None:
        settings = msgspec.structs.replace(SETTINGS, replica_frames_max=2)
        async with Sending(runtime, settings) as sending:
            fed = sending.add()
            await settle()
            sending.node.frames.clear()
            sending.node.slow = asyncio.Event()
            for _ in range(6):
                fed.append()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert [len(frame) for frame in sending.node.frames] == [1, 1], "two in flight"
            sending.node.slow.set()
            await settle()
            assert [len(frame) for frame in sending.node.frames] == [1, 1, 4]
            assert fed.feed.held == 6

    simulate(body)


def test_frames_are_cut_by_size() -> None:
    async def body(runtime: Runtime) -> None:
        settings = msgspec.structs.replace(SETTINGS, replica_frame_bytes_max=1024)
        async with Sending(runtime, settings) as sending:
            fed = sending.add()
            await settle()
            sending.node.frames.clear()
            for size in (400, 400, 400, 5_000):
                fed.append(size=size)
            await settle()
            assert [len(frame) for frame in sending.node.frames] == [2, 1, 1]

    simulate(body)


def test_a_committed_offset_travels_with_the_next_batch_or_alone_when_quiet() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            key = fed.log.key
            await settle(0.1)
            fed.append()
            await settle()
            fed.commit(1)
            fed.append()
            await settle()
            assert sending.node.committed[key] == 1
            fed.commit(2)
            frames = len(sending.node.frames)
            await settle(0.02)
            assert sending.node.committed[key] == 1, "perhaps a batch tells it"
            await settle(0.1)
            assert sending.node.committed[key] == 2
            await settle(1.0)
            assert len(sending.node.frames) == frames + 1, "told once"

    simulate(body)


def test_a_restarted_replica_is_told_again() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            fed.append()
            fed.commit(1)
            await settle(0.2)
            sending.node.committed.clear()
            sending.node.cut()
            sending.node.reachable = True
            for _ in range(30):  # nobody sends anything: only looking finds out
                await settle(0.1)
                sending.sender.probe(runtime.clock.monotonic())
            assert sending.node.connections == 2
            assert sending.node.committed[fed.log.key] == 1

    simulate(body)


def test_after_a_lost_connection_what_was_not_confirmed_is_sent_again() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            fed.append()
            await settle()
            sending.node.slow = asyncio.Event()
            fed.append()
            fed.append()
            await settle()
            assert fed.feed.held == 1
            sending.node.cut()
            await settle()
            sending.node.reachable, sending.node.slow = True, None
            fed.append()
            await settle(1.0)
            assert bases(sending) == [0, 1, 2, 1, 2, 3]
            assert fed.log.reads == [1], "from the log, up to what waits in memory"
            assert fed.feed.held == 4

    simulate(body)


def test_a_gap_sends_the_feed_back_to_what_the_replica_has() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            for _ in range(5):
                fed.append()
            await settle()
            assert fed.feed.held == 5
            sending.node.next_offsets[fed.log.key] = 2  # a power cut took what was `written` only
            fed.append()
            await settle()
            assert bases(sending) == [0, 1, 2, 3, 4, 5, 2, 3, 4, 5]
            assert fed.source.held[-5:] == [2, 3, 4, 5, 6], "it fell, and rose again"

    simulate(body)


def test_what_is_not_on_our_disk_yet_waits_for_it() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            await settle()
            fed.append(synced=False)
            await settle()
            sending.node.next_offsets[fed.log.key] = 0  # it lost it again
            fed.append(synced=False)
            await settle()
            assert bases(sending) == [0, 1], "the log has nothing to be read"
            fed.sync()
            await settle()
            assert bases(sending) == [0, 1, 0, 1]
            assert fed.feed.held == 2

    simulate(body)


def test_already_durable_counts_as_stored_and_tells_nothing() -> None:
    """Upstream defect 16."""

    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            await settle(0.1)
            fed.source.committed = 1
            sending.node.refusal = lambda key, base: AlreadyDurableError() if base == 0 else None
            fed.append()
            await settle()
            assert fed.feed.held == 1
            assert fed.source.over == []
            await settle(0.2)
            assert sending.node.committed[fed.log.key] == 1, "told by a notice"

    simulate(body)


def test_a_batch_that_is_being_written_is_asked_about_again() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            await settle()
            attempts = count()
            sending.node.refusal = lambda key, base: (
                AppendPendingError() if base == 0 and next(attempts) < 2 else None
            )
            fed.append()
            await settle(0.2)
            assert bases(sending) == [0, 0, 0]
            assert fed.feed.held == 1

    simulate(body)


def test_refusals_for_now_are_tried_again_with_growing_pauses() -> None:
    for error in (ThrottledError, RangeNotFoundError, UnavailableError):

        async def body(runtime: Runtime, error: type[HeadraceError] = error) -> None:
            async with Sending(runtime) as sending:
                fed = sending.add()
                await settle()
                sending.node.refusal = lambda key, base: error("not now")
                fed.append()
                await settle(5.0)
                assert fed.source.over == []
                assert (fed.feed.absent_since is None) is (error is ThrottledError)
                assert 5 < len(bases(sending)) < 20, "not in a hurry"
                sending.node.refusal = lambda key, base: None
                await settle(1.0)
                assert fed.feed.held == 1
                assert fed.feed.absent_since is None
                assert fed.feed.refusals == 0

        simulate(body)


def test_refusals_for_ever_end_the_feed_alone() -> None:
    for error in (SealedError, CorruptionError, NotPrimaryError):

        async def body(runtime: Runtime, error: type[HeadraceError] = error) -> None:
            async with Sending(runtime) as sending:
                fed, other = sending.add(1), sending.add(2)
                await settle()
                sending.node.refusal = lambda key, base: (
                    error("never") if key.stream_id == 1 else None
                )
                for _ in range(3):
                    fed.append()
                    other.append()
                    await settle()
                assert [type(each) for each in fed.source.over] == [error]
                assert other.feed.held == 3
                assert fed.feed.queued_bytes == sending.sender.queued_bytes == 0

        simulate(body)


def test_a_node_that_answers_heartbeats_is_slow_and_not_gone() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            await settle()
            sending.node.slow = asyncio.Event()
            fed.append()
            for _ in range(20):
                await settle(0.1)
                sending.sender.probe(runtime.clock.monotonic())
            assert sending.sender.unreachable_since is None
            assert sending.node.heartbeats > 5
            sending.node.slow.set()
            await settle()
            assert fed.feed.held == 1
            assert sending.node.connections == 1

    simulate(body)


def test_a_node_that_answers_nothing_is_gone_since_it_was_asked() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            await settle()
            sending.node.slow, sending.node.hangs = asyncio.Event(), True
            asked = runtime.clock.monotonic()
            fed.append()
            for _ in range(10):
                await settle(0.1)
                sending.sender.probe(runtime.clock.monotonic())
            assert sending.sender.unreachable_since is not None
            assert abs(sending.sender.unreachable_since - asked) < 0.05

    simulate(body)


def test_a_node_behind_costs_bounded_memory_and_few_reads() -> None:
    async def body(runtime: Runtime) -> None:
        settings = msgspec.structs.replace(
            SETTINGS, replica_queue_bytes_max=2_000, replica_read_bytes=1_024
        )
        async with Sending(runtime, settings) as sending:
            ranges = [sending.add(stream_id) for stream_id in range(12)]
            sending.node.cut()
            await settle()
            for _ in range(30):
                for fed in ranges:
                    fed.append()
            assert sending.sender.queued_bytes <= 2_000
            gate = asyncio.Event()
            for fed in ranges:
                fed.log.slow = gate
            sending.node.reachable = True
            await settle(1.0)
            assert sum(len(fed.log.reads) for fed in ranges) == 4, "at a time"
            gate.set()
            await settle(2.0)
            assert [fed.feed.held for fed in ranges] == [30] * 12
            assert sending.sender.queued_bytes == 0

    simulate(body)


def test_a_log_that_cannot_be_read_ends_the_feed() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            for _ in range(2):
                fed.append()
            await settle()
            fed.log.damage = CorruptionError("rot")
            sending.node.next_offsets[fed.log.key] = 0
            fed.append()
            await settle()
            assert [type(error) for error in fed.source.over] == [CorruptionError]
            fed.log.damage = UnavailableError("closing")
            closing = sending.add(2)
            closing.log.damage = fed.log.damage
            closing.append()
            await settle()
            sending.node.next_offsets[RangeKey(2, 0)] = 0
            closing.append()
            await settle()
            assert closing.source.over == []

    simulate(body)


def test_a_range_that_is_over_is_forgotten() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            fed = sending.add()
            await settle()
            sending.node.slow = asyncio.Event()
            fed.append()
            await settle()
            sending.sender.remove(fed.feed)
            fed.append()
            fed.commit(1)
            sending.node.slow.set()
            await settle(1.0)
            assert fed.source.held == []
            assert bases(sending) == [0]
            assert sending.sender.queued_bytes == 0

    simulate(body)


def test_without_ranges_nobody_is_called() -> None:
    async def body(runtime: Runtime) -> None:
        async with Sending(runtime) as sending:
            await settle(5.0)
            assert sending.node.connections == 0
            fed: Fed = sending.add()
            fed.append()
            await settle()
            assert fed.feed.held == 1

    simulate(body)
