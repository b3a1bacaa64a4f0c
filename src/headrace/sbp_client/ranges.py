"""The ranges of a stream as a client knows them, which replica to read from, and what to believe.

What was asked for is read out of an answer here, with RemoteProtocolError when it is not there;
`checked` says what is believed of a replica's answer to a fetch. `append_request` makes the request
for one APPEND, and `appended_offset` reads its answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.errors import (
    CorruptionError,
    RangeNotFoundError,
    RemoteProtocolError,
    StorageError,
    UnavailableError,
)
from headrace.runtime.interfaces import Clock
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import (
    AlreadyDurableError,
    NotPrimaryError,
    error_of,
    is_success,
    raise_for_status,
)
from headrace.wire.sbp.messages import Message, Range
from headrace.wire.sbp.records import decode_header, split

STICKY_MAX = 10_000  # ranges of which it is remembered who answered


class RangeMap:
    """The ranges of one stream by start offset. Empty sealed ranges are left out."""

    def __init__(self, ranges: Iterable[Range], *, known_at: float = float("-inf")) -> None:
        """`known_at`: when the placement manager was asked, on the monotonic clock."""
        ranges = list(ranges)
        kept = [r for r in ranges if r.end_offset < 0 or r.end_offset > r.start_offset]
        self.ranges = sorted(kept, key=lambda r: r.range_index)
        self._lost = [r for r in ranges if r.lost_until >= 0]
        self.known_at = known_at
        self._starts = [r.start_offset for r in self.ranges]

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    def writable(self) -> Range | None:
        if self.ranges and self.ranges[-1].end_offset < 0:
            return self.ranges[-1]
        return None

    def containing(self, offset: int) -> Range | None:
        """The range that holds or will hold `offset`; None below all and past a sealed end."""
        position = bisect_right(self._starts, offset) - 1
        if position < 0:
            return None
        found = self.ranges[position]
        return found if found.end_offset < 0 or offset < found.end_offset else None

    def lost_at(self, offset: int) -> int | None:
        """Where the stream goes on, if what it had at `offset` was lost and given up."""
        return next(
            (r.lost_until for r in self._lost if r.end_offset <= offset < r.lost_until), None
        )

    def ends_at(self, offset: int) -> bool:
        """Whether `offset` is where the stream goes on, as far as these ranges tell."""
        last = self.ranges[-1] if self.ranges else None
        return last is not None and (last.end_offset < 0 or offset == last.end_offset)

    def succeeded_by(self, writable: Range) -> RangeMap:
        """With the new writable range a seal returned; the one before it ends where it starts."""
        older = [
            replace(r, end_offset=writable.start_offset) if r.end_offset < 0 else r
            for r in self.ranges
            if r.range_index < writable.range_index
        ]
        return RangeMap([*older, writable], known_at=self.known_at)


def are_held(ranges: Iterable[Range], start: int, end: int) -> bool:
    """Whether as many disks hold [start, end) of these sealed ranges as an acknowledgement takes.

    StorageError when some of it was lost and an operator has given it up.
    """
    held = True
    for each in ranges:
        if max(each.end_offset, start) < min(each.lost_until, end):
            raise StorageError("lost, and given up", stream_id=each.stream_id, offset=start)
        doubtful = each.doubtful_offset
        if doubtful >= 0 and max(doubtful, start) < min(each.end_offset, end):
            held = False
    return held


def primary_address(range_: Range) -> str:
    for node in range_.replica_nodes:
        if node.is_primary and node.data_node is not None:
            return node.data_node.advertise_addr
    raise UnavailableError("range without a primary", stream_id=range_.stream_id)


def primary_node(range_: Range) -> int:
    """The node id of the range's primary; -1 where the range does not say."""
    for node in range_.replica_nodes:
        if node.is_primary and node.data_node is not None:
            return node.data_node.node_id
    return -1


def replica_addresses(range_: Range) -> list[str]:
    """The primary's first."""
    nodes = sorted(range_.replica_nodes, key=lambda node: not node.is_primary)
    return [node.data_node.advertise_addr for node in nodes if node.data_node is not None]


class Replicas:
    """Whom to ask for a range, in which order.

    An open range: its primary, who alone knows the tail. A sealed one: a replica whose files could
    be read on this machine, else any, another one in each client, so that readers spread. Who
    answered is asked again; who failed lately comes last.
    """

    def __init__(self, clock: Clock, *, spread: int, suspect_seconds: float) -> None:
        self._clock = clock
        self._spread = spread
        self._suspect_seconds = suspect_seconds
        self._sticky: OrderedDict[tuple[int, int], str] = OrderedDict()
        self._suspects: dict[str, float] = {}  # address -> until when
        self._near: set[str] = set()

    def order(self, range_: Range) -> list[str]:
        addresses = replica_addresses(range_)
        if len(addresses) < 2:
            return addresses
        if range_.end_offset >= 0:
            first = (self._spread + range_.stream_id + range_.range_index) % len(addresses)
            addresses = addresses[first:] + addresses[:first]
            if self._near:
                addresses.sort(key=lambda address: address not in self._near)
        sticky = self._sticky.get((range_.stream_id, range_.range_index))
        if sticky in addresses:
            addresses.remove(sticky)
            addresses.insert(0, sticky)
        if self._suspects:
            now = self._clock.monotonic()
            addresses.sort(key=lambda address: self._suspects.get(address, now) > now)
        return addresses

    def on_answered(self, range_: Range, address: str) -> None:
        key = (range_.stream_id, range_.range_index)
        if self._sticky.get(key) != address:
            self._sticky[key] = address
            if len(self._sticky) > STICKY_MAX:
                self._sticky.popitem(last=False)
        self._suspects.pop(address, None)

    def on_files_read(self, address: str, *, here: bool) -> None:
        """Whether its files are on this machine, for this process to open."""
        (self._near.add if here else self._near.discard)(address)

    def on_failed(self, range_: Range, address: str) -> None:
        """The replica could not give what was asked; the next one is asked first from now on."""
        key = (range_.stream_id, range_.range_index)
        if self._sticky.get(key) == address:
            del self._sticky[key]

    def suspect(self, address: str) -> None:
        """The node is gone, hangs or goes away: no range asks it first for a while."""
        self._suspects[address] = self._clock.monotonic() + self._suspect_seconds

    def is_suspect(self, address: str) -> bool:
        return self._suspects.get(address, float("-inf")) > self._clock.monotonic()


T = TypeVar("T")
R = TypeVar("R", bound=Message)


def typed(message: Message, expected: type[R]) -> R:
    if not isinstance(message, expected):
        raise RemoteProtocolError(
            "unexpected answer", expected=expected.__name__, found=type(message).__name__
        )
    return message


def present(value: T | None) -> T:
    if value is None:
        raise RemoteProtocolError("a result without its value")
    return value


def only(results: Sequence[T]) -> T:
    if len(results) != 1:
        raise RemoteProtocolError("one result expected", found=len(results))
    return results[0]


def milliseconds(seconds: float) -> int:
    """For a `timeout_ms`, where 0 would mean no deadline."""
    return max(1, int(seconds * 1000))


@dataclass(frozen=True, slots=True)
class Fetched:
    """Whole batches, from the one that contains the offset asked for; none at the end."""

    pieces: list[memoryview]
    next_offset: int
    verified: bool = False
    """Whether the checksums were tried: not yet of what came over a connection."""


@dataclass(frozen=True, slots=True)
class Want:
    """From where, and about how much."""

    stream_id: int
    offset: int
    max_bytes: int
    local: bool = False
    """Whether it may be read from the node's files, where they are on this machine."""
    check_end: bool = True
    """Whether an empty answer is believed only while the ranges are known to be fresh."""


def checked(pieces: list[memoryview], range_: Range, offset: int, address: str) -> Fetched:
    """What a replica returned, if it may be believed; RangeNotFoundError or CorruptionError."""
    data = {"stream_id": range_.stream_id, "offset": offset, "peer": address}
    if not pieces:
        if range_.end_offset >= 0:
            raise RangeNotFoundError("nothing returned of a sealed range", **data)
        if len(range_.replica_nodes) > 1 and address != primary_address(range_):
            raise NotPrimaryError("only the primary knows the end", **data)
        return Fetched([], offset)
    first = decode_header(pieces[0])
    if not first.base_offset <= offset < first.next_offset:
        raise CorruptionError("another offset returned than asked for", **data)
    end = end_of(pieces)
    if 0 <= range_.end_offset < end:
        # A replica that has not learned the final end: what lies beyond it never happened.
        pieces = _cut(pieces, range_.end_offset)
        end = range_.end_offset
    return Fetched(pieces, end)


def end_of(pieces: Sequence[memoryview]) -> int:
    """The offset after the last record of the batches."""
    end = 0
    for header, _ in split(pieces[-1]):
        end = header.next_offset
    return end


def _cut(pieces: Sequence[memoryview], end: int) -> list[memoryview]:
    kept: list[memoryview] = []
    for piece in pieces:
        size = sum(h.batch_bytes for h, _ in split(piece) if h.next_offset <= end)
        if size:
            kept.append(piece[:size])
    return kept


BATCH_BYTES_MAX = 12 << 20
"""The longest batch of an append: it must fit into one frame of a fetch's answer, with a header."""


def append_info(
    range_: m.Range,
    length: int,
    *,
    request_index: int = 0,
    writer_epoch: int = -1,
    expected_offset: int = -1,
) -> m.AppendInfo:
    return m.AppendInfo(
        range=m.Range(stream_id=range_.stream_id, range_index=range_.range_index),
        request_index=request_index,
        batch_length=length,
        writer_epoch=writer_epoch,
        expected_offset=expected_offset,
    )


def append_request(
    range_: m.Range, length: int, *, writer_epoch: int, expected_offset: int, timeout: float
) -> m.AppendRequest:
    info = append_info(range_, length, writer_epoch=writer_epoch, expected_offset=expected_offset)
    return m.AppendRequest(timeout_ms=milliseconds(timeout), append_requests=(info,))


def appended_offset(message: m.Message) -> int:
    """Give the base offset out of the answer to an APPEND of one batch."""
    response = typed(message, m.AppendResponse)
    raise_for_status(response.status)
    result = only(response.append_responses)
    return result_offset(result)


def result_offset(result: m.AppendResult) -> int:
    """Give the base offset of a stored batch; one that was stored before counts as stored."""
    if is_success(result.status):
        return result.base_offset
    assert result.status is not None
    error = error_of(result.status, stream_id=result.stream_id)
    if isinstance(error, AlreadyDurableError):
        return result.base_offset
    raise error
