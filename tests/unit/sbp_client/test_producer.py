"""The producer of plain streams against nodes that fail in a given order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from headrace.config.process import ClientSettings
from headrace.errors import (
    CorruptionError,
    DeadlineError,
    DiskFullError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    RangeNotFoundError,
    SealedError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
)
from headrace.sbp_client.client import SbpClient
from headrace.sbp_client.producer import StreamProducer
from headrace.sbp_client.send_queue import Batch, StreamQueue
from headrace.wire.sbp.errors import AlreadyDurableError, NotPrimaryError, QuorumError
from headrace.wire.sbp.messages import Range
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header, decode_index
from tests.log_cluster import batch as log_batch
from tests.simulator.runtime import Simulation
from tests.unit.client.fake_nodes import FakeCluster, hang

BEFORE = Code.SYNC_RANGES  # the step before a batch is stored; Code.APPEND is the answer
Main = Callable[[FakeCluster, SbpClient, StreamProducer], Awaitable[None]]


def run(main: Main, cluster: FakeCluster | None = None, **settings: int) -> None:
    simulation = Simulation(1)
    used = cluster or three_nodes()

    async def whole() -> None:
        client = used.client(simulation.runtime("client"), ClientSettings(**settings))
        producer = StreamProducer(client)
        await main(used, client, producer)
        await producer.close()
        await client.close()

    simulation.run(whole())


def three_nodes() -> FakeCluster:
    cluster = FakeCluster("a", "b", "c")
    cluster.create(1)
    return cluster


def stored(cluster: FakeCluster, stream_id: int = 1) -> list[bytes]:
    """Records in the order of their offsets."""
    found: list[bytes] = []
    for range_ in cluster.streams[stream_id]:
        for batch in range_.batches:
            header = decode_header(batch)
            assert header.base_offset == len(found), "offsets are dense"
            starts = decode_index(header, batch)
            records = batch[55 : header.records_end]
            found += [records[a:b] for a, b in zip(starts, (*starts[1:], None), strict=True)]
    return found


def numbered(count: int) -> list[bytes]:
    return [b"record %d" % n for n in range(count)]


async def send_all(producer: StreamProducer, records: list[bytes]) -> list[asyncio.Future[int]]:
    """Each in a batch of its own."""
    answers = []
    for record in records:
        answers.append(await producer.send(1, [record]))
        producer._queues[1].close_open(0)
        producer._pump(producer._queues[1])
    return answers


def test_records_linger_and_leave_together() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        answers = [await producer.send(1, [record]) for record in numbered(10)]
        group = await producer.send(1, [b"x", b"yy", b"z"])
        before = asyncio.get_running_loop().time()
        assert [await answer for answer in answers] == list(range(10))
        assert await group == 10
        assert asyncio.get_running_loop().time() - before >= 0.0019
        assert stored(cluster) == [*numbered(10), b"x", b"yy", b"z"]
        assert cluster.nodes["a"].frames == [[(1, 0)]]
        header = decode_header(cluster.streams[1][0].batches[0])
        assert (header.sequence, header.record_count) == (0, 13)
        assert 0 <= header.producer_id < 1 << 63

    run(main)


def test_a_full_batch_does_not_linger() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        before = asyncio.get_running_loop().time()
        await (await producer.send(1, [b"x" * 1000]))
        assert asyncio.get_running_loop().time() - before < 0.1
        await asyncio.gather(*[await producer.send(1, [b"y" * 600]) for _ in range(3)])
        assert [decode_header(b).record_count for b in cluster.streams[1][0].batches] == [
            1,
            1,
            1,
            1,
        ]

    run(main, batch_bytes=1000, linger_ms=500)


def test_streams_of_one_node_share_frames() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        for stream_id in range(2, 12):
            cluster.create(stream_id, "a")
        warm = [await producer.send(n, [b"first"]) for n in range(1, 12)]
        await asyncio.gather(*warm)
        cluster.nodes["a"].frames.clear()
        answers = [await producer.send(n, [b"second"]) for n in range(1, 12)]
        assert await asyncio.gather(*answers) == [1] * 11
        assert [len(frame) for frame in cluster.nodes["a"].frames] == [11]

    run(main)


def test_the_window_bounds_batches_in_flight() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, [b"first"]))
        release = asyncio.Event()

        async def wait() -> None:
            await release.wait()

        cluster.nodes["a"].script[Code.APPEND] = deque([wait] * 100)
        answers = await send_all(producer, numbered(20))
        await asyncio.sleep(0.1)
        assert producer.statistics()["batches_in_flight"] == 4
        release.set()
        assert await asyncio.gather(*answers) == list(range(1, 21))

    run(main, window=4)


def test_only_the_oldest_batch_opens_a_range() -> None:
    """A node that does not know the producer takes any sequence: it must see the oldest first."""

    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([ThrottledError()])
        answers = await send_all(producer, numbered(30))
        assert await asyncio.gather(*answers) == list(range(30))
        assert stored(cluster) == numbered(30)

    run(main)


@pytest.mark.parametrize(
    "error",
    [
        SealedError(),
        QuorumError(),
        DiskFullError(),
        NotPrimaryError(),
        RangeNotFoundError(),
        UnavailableError("gone"),
        DeadlineError("timeout"),
        CorruptionError("broken"),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 5])
def test_i18_a_failed_batch_and_all_behind_it_are_sent_again_in_order(
    error: HeadraceError, position: int
) -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([*[None] * position, error])
        answers = await send_all(producer, numbered(40))
        assert await asyncio.gather(*answers) == list(range(40))
        assert stored(cluster) == numbered(40)

    run(main)


@pytest.mark.parametrize("frames", [0, 1, 3])
def test_i18_a_stored_batch_whose_answer_was_lost_is_stored_once(frames: int) -> None:
    """Stored, the answer lost, the range sealed, and the next one led by another node."""

    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        lost = UnavailableError("connection lost")
        cluster.nodes["a"].script[Code.APPEND] = deque([*[None] * frames, lost])
        answers = await send_all(producer, numbered(40))
        assert await asyncio.gather(*answers) == list(range(40))
        assert stored(cluster) == numbered(40)
        assert cluster.streams[1][0].end > 0
        assert cluster.streams[1][1].replicas[0] == "b"

    run(main, frame_bytes=500)


def test_upstream_defect_16_already_durable_counts_as_success() -> None:
    """And the "known client defects": a retry answered 1464 was counted as a failure."""

    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([AlreadyDurableError()])
        assert await (await producer.send(1, [b"x"])) == 0
        assert len(cluster.streams[1]) == 1, "nothing to seal"

    run(main)


def test_a_busy_node_is_tried_again_without_a_seal() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, [b"first"]))
        cluster.nodes["a"].script[BEFORE] = deque([None, ThrottledError(), None, ThrottledError()])
        answers = await send_all(producer, numbered(10))
        assert await asyncio.gather(*answers) == list(range(1, 11))
        assert stored(cluster) == [b"first", *numbered(10)]
        assert len(cluster.streams[1]) == 1

    run(main)


def test_a_primary_that_dies_is_replaced_at_once() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, numbered(3)))
        cluster.nodes["a"].down = True
        before = asyncio.get_running_loop().time()
        assert await (await producer.send(1, [b"x"])) == 3
        assert asyncio.get_running_loop().time() - before < 0.5

    run(main)


def test_a_primary_that_hangs_is_noticed_by_the_request_time_out() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        async def frozen() -> None:
            await asyncio.sleep(3.0)
            raise DeadlineError("no answer in time")

        cluster.nodes["a"].script[Code.APPEND] = deque([frozen] * 9)
        before = asyncio.get_running_loop().time()
        assert await (await producer.send(1, [b"x"])) == 0
        assert asyncio.get_running_loop().time() - before < 4.0
        assert stored(cluster) == [b"x"]

    run(main)


def test_a_successor_that_is_dead_too_is_sealed_in_its_turn() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, numbered(3)))
        cluster.nodes["a"].down = True
        real = cluster.seal

        def seal(stream_id: int, epoch: int = -1) -> object:
            new = real(stream_id, epoch)
            if new.index == 1:
                cluster.nodes[new.replicas[0]].down = True
            return new

        cluster.seal = seal  # type: ignore[method-assign, assignment]
        answers = await send_all(producer, numbered(5))
        assert await asyncio.gather(*answers) == list(range(3, 8))
        assert [r.index for r in cluster.streams[1]] == [0, 1, 2]

    run(main)


def test_f9_sealing_again_makes_no_second_successor() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, numbered(3)))
        first = await client.seal(1, 0)
        again = await client.seal(1, 0)
        assert (first.range_index, again.range_index) == (1, 1)
        assert len(cluster.streams[1]) == 2

    run(main)


def test_f11_a_batch_for_a_sealed_range_goes_to_the_next() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, numbered(3)))
        cluster.seal(1)  # by somebody else
        assert await (await producer.send(1, [b"x"])) == 3
        assert [len(r.batches) for r in cluster.streams[1]] == [3, 1]

    run(main)


def test_two_streams_fail_over_by_themselves() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.create(2, "b", "c", "a")
        cluster.nodes["a"].script[BEFORE] = deque([QuorumError()])
        answers = [await producer.send(n, [b"%d" % k]) for k in range(50) for n in (1, 2)]
        await asyncio.gather(*answers)
        assert stored(cluster, 1) == stored(cluster, 2) == [b"%d" % k for k in range(50)]
        assert (len(cluster.streams[1]), len(cluster.streams[2])) == (2, 1)

    run(main)


def test_what_cannot_be_delivered_fails_and_the_next_starts_over() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        for node in cluster.nodes.values():
            node.down = True
        answers = await send_all(producer, numbered(5))
        loop = asyncio.get_running_loop()
        before = loop.time()
        with pytest.raises((UnavailableError, DeadlineError)):
            await producer.flush()
        assert 1.0 < loop.time() - before <= 2.5
        assert all(answer.done() and answer.exception() for answer in answers)
        assert producer.statistics()["pending_bytes"] == 0
        await producer.flush()  # told once
        for node in cluster.nodes.values():
            node.down = False
        answer = await producer.send(1, [b"later"])
        assert await answer == 0
        assert stored(cluster) == [b"later"]

    run(main, delivery_timeout_ms=2000)


def test_after_a_failure_the_sequence_starts_over() -> None:
    """Whether the failed batch was stored is unknown: going on after it could leave a hole."""

    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await (await producer.send(1, [b"0"]))
        for node in cluster.nodes.values():
            node.down = True
        lost = await producer.send(1, [b"lost"])
        with pytest.raises((UnavailableError, DeadlineError)):
            await lost
        for node in cluster.nodes.values():
            node.down = False
        assert await (await producer.send(1, [b"1"])) == 1
        assert stored(cluster) == [b"0", b"1"]
        headers = [decode_header(b) for r in cluster.streams[1] for b in r.batches]
        assert [header.sequence for header in headers] == [0, 0]
        assert headers[0].producer_id != headers[1].producer_id

    run(main, delivery_timeout_ms=1000)


def test_an_answer_that_comes_after_its_frame_was_given_up_is_dropped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        await asyncio.gather(*await send_all(producer, [b"first"]))

        async def late() -> None:
            await asyncio.sleep(0.2)

        lost = UnavailableError("this one's answer only")
        cluster.nodes["a"].script[Code.APPEND] = deque([lost, late, late])
        answers = await send_all(producer, numbered(12))
        assert await asyncio.gather(*answers) == list(range(1, 13))
        await asyncio.sleep(1.0)
        assert stored(cluster) == [b"first", *numbered(12)]

    run(main, frame_bytes=200)
    assert not caplog.records, "no task failed"


def test_each_try_has_a_header_of_its_own() -> None:
    """In one process the node keeps it, and writes the offset into it."""

    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.nodes["a"].script[BEFORE] = deque([SealedError()])
        await (await producer.send(1, [b"x"]))
        pieces = log_batch(b"y")
        cluster.nodes["b"].script[BEFORE] = deque([SealedError()])
        await client.append(1, pieces)
        headers = [h for node in cluster.nodes.values() for h in node.headers]
        assert len(headers) == 4
        assert len({id(header) for header in headers}) == 4

    run(main)


def test_batches_that_come_back_in_any_order_stand_in_line_in_order() -> None:
    queue = StreamQueue(1, producer_id=5, window=8, range=Range(), acknowledged=True)
    for n in range(5):
        queue.open = Batch(deadline=1.0)
        queue.open.records.append(b"%d" % n)
        queue.close_open(0)
    taken = [queue.take(0) for _ in range(4)]
    assert [queue.on_returned(taken[at]) for at in (2, 0, 3)] == [False, False, False]
    assert queue.room == 0, "nothing overtakes what came back"
    assert queue.on_returned(taken[1])
    queue.line_up()
    assert [queue.take(0).sequence for _ in range(5)] == [0, 1, 2, 3, 4]


def test_a_deleted_stream_fails_its_records_only() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.create(2)
        cluster.nodes["a"].script[BEFORE] = deque([NotFoundError()])
        lost = await producer.send(1, [b"x"])
        with pytest.raises(NotFoundError):
            await lost
        assert await (await producer.send(2, [b"y"])) == 0

    run(main)


def test_a_sequence_that_the_node_refuses_out_of_the_blue_is_told() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        refusal = InvalidArgumentError("out of order", producer_id=1)
        cluster.nodes["a"].script[BEFORE] = deque([refusal])
        with pytest.raises(InvalidArgumentError):
            await (await producer.send(1, [b"x"]))

    run(main)


def test_memory_is_bounded() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        release = asyncio.Event()

        async def wait() -> None:
            await release.wait()

        cluster.nodes["a"].script[Code.APPEND] = deque([wait] * 9)
        first = await producer.send(1, [b"x" * 5000])
        with pytest.raises(ThrottledError):
            producer.send_nowait(1, [b"y" * 6000])
        with pytest.raises(ThrottledError):
            await producer.send(1, [b"y" * 6000], timeout=0.1)
        small = producer.send_nowait(1, [b"fits"])
        waiting = [asyncio.create_task(producer.send(1, [b"%d" % n * 3000])) for n in range(6)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting[1:])
        waiting[2].cancel()
        release.set()
        await asyncio.gather(first, small)
        for task in (*waiting[:2], *waiting[3:]):
            await (await task)
        order = [record[:1] for record in stored(cluster)]
        assert order == [b"x", b"f", b"0", b"1", b"3", b"4", b"5"]

    run(main, pending_bytes_max=10_000)


def test_records_that_fit_no_batch_are_refused() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        with pytest.raises(TooLargeError):
            await producer.send(1, [b"x" * (12 << 20)])
        with pytest.raises(InvalidArgumentError):
            await producer.send(1, [])
        assert producer.statistics()["pending_bytes"] == 0

    run(main)


def test_closing_fails_what_is_not_acknowledged() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        cluster.nodes["a"].script[Code.APPEND] = deque([hang])
        answer = await producer.send(1, [b"x"])
        await asyncio.sleep(0.1)
        await producer.close()
        with pytest.raises(UnavailableError):
            await answer
        with pytest.raises(UnavailableError):
            await producer.send(1, [b"y"])

    run(main)


def test_a_caller_that_stops_waiting_disturbs_nobody() -> None:
    async def main(cluster: FakeCluster, client: SbpClient, producer: StreamProducer) -> None:
        answers = [await producer.send(1, [record]) for record in numbered(3)]
        answers[1].cancel()
        await producer.flush()
        assert stored(cluster) == numbered(3)
        assert (answers[0].result(), answers[2].result()) == (0, 2)

    run(main)
