"""One writer's pipeline against a data node that can be told how to fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace.config.process import ClientSettings
from headrace.errors import (
    DeadlineError,
    DiskFullError,
    FencedError,
    HeadraceError,
    InvalidArgumentError,
    SealedError,
    StorageError,
    ThrottledError,
    TooLargeError,
    UnavailableError,
    UnexpectedOffsetError,
)
from headrace.net.sbp_server import Payload, Reply
from headrace.runtime.system import system_runtime
from headrace.sbp_client.client import BATCH_BYTES_MAX, SbpClient
from headrace.sbp_client.owned_stream import FRUITLESS_RECOVERIES_MAX, OwnedStream
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import error_of, status_of
from headrace.wire.sbp.messages import OK
from headrace.wire.sbp.opcodes import Code
from headrace.wire.sbp.records import decode_header
from tests.log_cluster import batch


class FakeLog:
    """Placement manager and data node of one stream, as one channel."""

    def __init__(self) -> None:
        self.ends: list[int] = []  # of sealed ranges
        self.stored: list[bytes] = []
        self.epoch = 0
        self.refuse: list[HeadraceError] = []  # for the next appends, before they are stored
        self.lose: list[HeadraceError] = []  # for the next appends, after they are stored
        self.seal_errors: list[HeadraceError] = []
        self.release: asyncio.Event | None = None
        self.in_flight = self.in_flight_max = 0
        self.appends: list[int] = []  # expected offsets as they arrived
        self.lost_records = 0  # a seal reports so many fewer

    @property
    def index(self) -> int:
        return len(self.ends)

    async def call(
        self, code: Code, message: m.Message, payload: Payload = (), *, timeout: float = 3.0
    ) -> Reply:
        try:
            if isinstance(message, m.AppendRequest):
                return await self._append(message, payload)
            if isinstance(message, m.SealRangesRequest):
                return self._seal(message)
            assert isinstance(message, m.ListRangesRequest)
            result = m.ListRangesResult(ranges=(self._range(),), status=OK)
            return Reply(m.ListRangesResponse(list_responses=(result,), status=OK))
        except HeadraceError as error:
            raise error_of(status_of(error)) from error

    async def close(self) -> None:
        pass

    def _range(self) -> m.Range:
        start = self.ends[-1] if self.ends else 0
        node = m.ReplicaNode(data_node=m.DataNode(node_id=0, advertise_addr="n:1"), is_primary=True)
        return m.Range(
            stream_id=1,
            range_index=self.index,
            start_offset=start,
            next_offset=len(self.stored),
            replica_nodes=(node,),
            writer_epoch=self.epoch,
        )

    def _seal(self, message: m.SealRangesRequest) -> Reply:
        (wanted,) = message.ranges
        if self.seal_errors:
            raise self.seal_errors.pop(0)
        if wanted.writer_epoch < self.epoch:
            raise FencedError
        self.epoch = wanted.writer_epoch
        if wanted.range_index == self.index:
            del self.stored[len(self.stored) - self.lost_records :]
            self.ends.append(len(self.stored))
        result = m.SealRangesResult(range=self._range(), status=OK)
        return Reply(m.SealRangesResponse(seal_responses=(result,), status=OK))

    async def _append(self, message: m.AppendRequest, payload: Payload) -> Reply:
        (info,) = message.append_requests
        assert info.range is not None
        self.appends.append(info.expected_offset)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            if self.refuse:
                raise self.refuse.pop(0)
            if info.range.range_index != self.index:
                raise SealedError
            if info.writer_epoch != self.epoch:
                raise FencedError
            if info.expected_offset != len(self.stored):
                raise UnexpectedOffsetError
            self.stored.append(bytes(payload[1]))
            if self.lose:
                raise self.lose.pop(0)
            if self.release is not None:
                await self.release.wait()
            else:
                await asyncio.sleep(0)
        finally:
            self.in_flight -= 1
        result = m.AppendResult(stream_id=1, base_offset=info.expected_offset, status=OK)
        return Reply(m.AppendResponse(append_responses=(result,), status=OK))


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest_asyncio.fixture
async def client(log: FakeLog) -> AsyncIterator[SbpClient]:
    async def connect() -> FakeLog:
        return log

    client = SbpClient(system_runtime(), placement=connect, node=lambda address: connect)
    yield client
    await client.close()


def put(stream: OwnedStream, body: bytes) -> asyncio.Future[int]:
    header, *rest = batch(body, base_offset=stream.next_offset)
    assert isinstance(header, bytearray)
    assert decode_header(header).base_offset == stream.next_offset
    return stream.append(header, rest)


def bodies(count: int) -> list[bytes]:
    return [b"%d" % i for i in range(count)]


async def test_appends_are_pipelined_in_order(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True, window=4)
    log.release = asyncio.Event()
    answers = [put(stream, body) for body in bodies(10)]
    assert stream.next_offset == 10
    await asyncio.sleep(0.01)
    assert log.in_flight == 4, "the window is full, the rest waits"
    assert stream.pending_batches == 10
    log.release.set()
    assert await asyncio.gather(*answers) == list(range(10))
    assert log.stored == bodies(10)
    assert log.in_flight_max == 4
    await stream.flush()
    await stream.close()


@pytest.mark.parametrize(
    "error", [SealedError(), UnavailableError(), DeadlineError(), StorageError()]
)
@pytest.mark.parametrize("stored", [True, False])
async def test_a_failure_in_the_middle_neither_loses_nor_doubles(
    client: SbpClient, log: FakeLog, error: HeadraceError, stored: bool
) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    (log.lose if stored else log.refuse).extend([error])
    answers = [put(stream, body) for body in bodies(20)]
    assert await asyncio.gather(*answers) == list(range(20))
    assert log.stored == bodies(20)
    assert log.index >= 1, "sealed"
    assert stream.failure is None
    await stream.close()


async def test_what_the_seal_shows_as_stored_is_not_sent_again(
    client: SbpClient, log: FakeLog
) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.lose.extend([UnavailableError()] * 3)
    answers = [put(stream, body) for body in bodies(3)]
    assert await asyncio.gather(*answers) == [0, 1, 2]
    assert log.appends == [0, 1, 2]
    await stream.close()


async def test_fencing_is_final(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    await put(stream, b"a")
    log.epoch = 2
    answers = [put(stream, body) for body in bodies(5)]
    for answer in answers:
        with pytest.raises(FencedError):
            await answer
    with pytest.raises(FencedError):
        put(stream, b"more")
    with pytest.raises(FencedError):
        await stream.flush()
    assert isinstance(stream.failure, FencedError)
    assert log.stored == [b"a"]
    await stream.close()
    with pytest.raises(FencedError):
        await OwnedStream.open(client, 1, 1, clean=False)


async def test_fencing_may_be_learned_at_the_seal(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.refuse.append(UnavailableError())
    log.seal_errors.append(FencedError())
    with pytest.raises(FencedError):
        await put(stream, b"a")
    await stream.close()


async def test_bad_requests_are_not_repeated(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.refuse.append(InvalidArgumentError("no"))
    with pytest.raises(InvalidArgumentError):
        await put(stream, b"a")
    assert log.appends == [0]
    assert log.index == 0
    await stream.close()


async def test_a_disk_that_stays_full_ends_the_writer(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.refuse.extend([DiskFullError()] * 50)
    with pytest.raises(DiskFullError):
        await put(stream, b"a")
    assert len(log.appends) == FRUITLESS_RECOVERIES_MAX + 1
    await stream.close()


async def test_lost_acknowledged_records_are_noticed(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    await put(stream, b"a")
    await put(stream, b"b")
    log.lost_records = 1
    log.refuse.append(SealedError())
    with pytest.raises(StorageError, match="does not continue"):
        await put(stream, b"c")
    await stream.close()


async def test_the_placement_manager_may_be_away_for_a_while(
    client: SbpClient, log: FakeLog
) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.refuse.append(SealedError())
    log.seal_errors.extend([UnavailableError()] * 3)
    assert await put(stream, b"a") == 0
    await stream.close()


async def test_recovery_has_an_end(client: SbpClient, log: FakeLog) -> None:
    client.settings = ClientSettings(metadata_timeout_ms=100)
    stream = await OwnedStream.open(client, 1, 1, clean=True, recovery_timeout=0.2)
    log.refuse.append(SealedError())
    log.seal_errors.extend([UnavailableError()] * 1000)
    with pytest.raises(UnavailableError):
        await put(stream, b"a")
    with pytest.raises(UnavailableError):
        put(stream, b"b")
    await stream.close()


async def test_too_much_pending_is_refused_without_taking_an_offset(
    client: SbpClient, log: FakeLog
) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True, pending_bytes_max=200)
    log.release = asyncio.Event()
    first = put(stream, b"x" * 100)
    with pytest.raises(ThrottledError):
        put(stream, b"y" * 100)
    assert stream.next_offset == 1
    log.release.set()
    await first
    await put(stream, b"y" * 100)
    await stream.close()


async def test_a_wrong_offset_is_refused_at_once(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    header, *body = batch(b"a", base_offset=5)
    assert isinstance(header, bytearray)
    with pytest.raises(UnexpectedOffsetError):
        stream.append(header, body)
    await stream.close()


async def test_closing_fails_what_is_not_acknowledged(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.release = asyncio.Event()
    answer = put(stream, b"a")
    await asyncio.sleep(0)
    await stream.close()
    with pytest.raises(UnavailableError):
        await answer


async def test_a_busy_node_is_tried_again_without_a_seal(client: SbpClient, log: FakeLog) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.refuse.extend([ThrottledError(), ThrottledError()])
    answers = [put(stream, body) for body in bodies(20)]
    assert stream.pending_batches == 20
    await stream.flush()
    assert await asyncio.gather(*answers) == list(range(20))
    assert log.stored == bodies(20)
    assert log.index == 0, "a seal would help nobody"
    await stream.close()


async def test_a_failure_behind_a_throttled_batch_still_seals(
    client: SbpClient, log: FakeLog
) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    log.refuse.extend([ThrottledError(), UnavailableError()])
    answers = [put(stream, body) for body in bodies(5)]
    assert await asyncio.gather(*answers) == list(range(5))
    assert log.stored == bodies(5)
    assert log.index == 1
    await stream.close()


async def test_a_batch_that_no_frame_could_return_is_refused_at_once(
    client: SbpClient, log: FakeLog
) -> None:
    stream = await OwnedStream.open(client, 1, 1, clean=True)
    with pytest.raises(TooLargeError):
        put(stream, b"x" * BATCH_BYTES_MAX)
    assert await put(stream, b"fits") == 0
    await stream.close()
