"""Requests of a connection in either framing: its first bytes tell which, and it keeps to it.

Both decoders keep at most what arrived, refuse a length above the limit as soon as it is read, and
hand out each frame in a buffer of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.wire.iggy.classic_frames import (
    ALL,
    FRAME_BYTES_MAX,
    SEND_FRAME_BYTES_MAX,
    WITH_MESSAGES,
    FrameMemory,
    RequestDecoder,
    RequestEvent,
    RequestFrame,
    TooLarge,
)
from headrace.wire.iggy.fields import Buffer
from headrace.wire.iggy.vsr import frames
from headrace.wire.iggy.vsr.batch import fresh_memory, growth_of_send

_LENGTH_BYTES = 4
_FREE_MAX = 64  # looked through one by one
_FIRST_BYTES = 1024  # of a SEND, in which it says where its messages go and how many there are
_SIZE_END = 52  # a header's first bytes up to here state the size of its frame


def _whole_frame(frame: Buffer) -> RequestFrame:
    head, code = frames.decode_request(frame)
    return RequestFrame(code, memoryview(frame)[frames.HEADER_BYTES :], _owning(head, frame))


def _owning(head: frames.Head, frame: Buffer) -> frames.Head:
    """The head of a frame that has memory of its own; of short ones nobody keeps it."""
    if head.operation != frames.SEND or len(frame) < frames.KEPT_BYTES_MIN:
        return head
    return head._replace(lent=frames.Lent(frame, _nothing))


def _nothing(memory: Buffer) -> None:
    """Nobody waits for it."""


def _nobody() -> bool:
    return False


class FramePool:
    """Memory of large frames that were read, for the next ones.

    Most SENDs of dialect C are converted into memory of their own, so that of their frames is free
    once they are answered, or no longer kept for readers; taking it from the system anew costs as
    much as converting them. It refers to nobody who may keep frames: see `vsr.Lent`.
    """

    def __init__(self, bytes_max: int = 32 * 1024 * 1024) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._free: list[bytearray] = []

    @property
    def bytes(self) -> int:
        return self._bytes

    def take(self, length: int) -> bytearray:
        """At least so long; what is in it is anybody's."""
        for position in range(len(self._free) - 1, -1, -1):
            if length <= len(self._free[position]) <= 2 * length:
                found = self._free.pop(position)
                self._bytes -= len(found)
                return found
        return bytearray(length)

    def give(self, memory: bytearray) -> None:
        """What came first makes room: SENDs may have become longer or shorter."""
        self._free.append(memory)
        self._bytes += len(memory)
        while self._bytes > self._bytes_max or len(self._free) > _FREE_MAX:
            self._bytes -= len(self._free.pop(0))


class VsrRequestDecoder:
    """Dialect C. After TooLarge it stays silent: where the next frame begins is not known. `more`
    is as in `RequestDecoder`.

    The payload of a SEND that `complete` gave is good until `room` is asked for again, or longer if
    its memory is kept (see `vsr.Lent`).
    """

    def __init__(
        self, pool: FramePool | None = None, keeps_frames: Callable[[], bool] = _nobody
    ) -> None:
        self._pool = FramePool() if pool is None else pool
        self._keeps_frames = keeps_frames
        self._take_back = self._pool.give  # one for all, as many may be kept
        self._pending = bytearray()
        self._lent: frames.Lent | None = None
        self._growing: memoryview | None = None  # in the place of what is pending
        self._place: FrameMemory | None = None  # as well, of a large frame
        self._rest: memoryview | None = None
        self._ended = False
        self.set_limits(FRAME_BYTES_MAX, SEND_FRAME_BYTES_MAX)

    def set_limits(self, frame_bytes_max: int, send_frame_bytes_max: int) -> None:
        self._frame_bytes_max = frames.HEADER_BYTES + frame_bytes_max
        self._send_frame_bytes_max = frames.HEADER_BYTES + max(
            frame_bytes_max, send_frame_bytes_max
        )

    @property
    def buffered_bytes(self) -> int:
        if self._place is not None:
            return self._place.filled
        return len(self._pending) if self._growing is None else len(self._growing)

    def unfinished(self) -> bytes:
        """As in `RequestStream`."""
        place = self._place
        return bytes(self._pending if place is None else place.memory[: place.filled])

    def room(self, least: int, most: int) -> memoryview | None:
        have = len(self._pending)
        if self._ended or have < max(least, frames.HEADER_BYTES):
            return None
        total = frames.frame_bytes(self._pending)
        if total > most:
            return None
        if self._lent is not None:
            if not self._lent.kept:
                self._lent.give_back()
            self._lent = None
        if self._pending[frames.OPERATION_AT] == frames.SEND:
            first = self._pending[frames.HEADER_BYTES : frames.HEADER_BYTES + _FIRST_BYTES]
            growth = growth_of_send(first, total - frames.HEADER_BYTES)
            if growth and not self._keeps_frames():
                self._growing = fresh_memory(total + growth)
                self._growing[:have] = self._pending
                return self._growing[have:total]
        frame = self._pool.take(total)
        frame[:have] = self._pending
        self._pending = frame
        return memoryview(frame)[have:total]

    def complete(self) -> RequestEvent:
        if self._growing is not None:
            return self._take_growing(self._growing)
        frame, self._pending = self._pending, bytearray()
        whole = memoryview(frame)[: frames.frame_bytes(frame)]
        head, code = frames.decode_request(whole)
        if head.operation == frames.SEND:
            self._lent = frames.Lent(frame, self._take_back)
            head = head._replace(lent=self._lent)
        return RequestFrame(code, whole[frames.HEADER_BYTES :], head)

    def _take_growing(self, frame: memoryview) -> RequestFrame:
        self._pending, self._growing = bytearray(), None
        total = frames.frame_bytes(frame)
        head, code = frames.decode_request(frame[:total])
        head = head._replace(room=frame[frames.HEADER_BYTES :])
        return RequestFrame(code, frame[frames.HEADER_BYTES : total], head)

    def feed(self, data: Buffer, events_max: int = ALL) -> list[RequestEvent]:
        assert self._rest is None, "`more` comes first"
        whole = not self.buffered_bytes and len(data) >= frames.HEADER_BYTES and not self._ended
        if whole and len(data) == frames.frame_bytes(data) <= self._frame_bytes_max:
            # One whole frame, as requests mostly come. Bytes are nobody's to change, so they stay.
            return [_whole_frame(data if isinstance(data, bytes) else bytearray(data))]
        return self._decode(memoryview(data), events_max)

    def more(self, events_max: int) -> list[RequestEvent]:
        rest, self._rest = self._rest, None
        return [] if rest is None else self._decode(rest, events_max)

    def _decode(self, view: memoryview, events_max: int) -> list[RequestEvent]:
        events: list[RequestEvent] = []
        position = 0
        if self._place is not None:
            position = self._place.fill(view)
            if not self._place.is_full:
                return events
            frame, self._place = self._place.memory, None
            events.append(_whole_frame(frame))
        while not self._ended:
            if len(events) == events_max:
                self._rest = view[position:]
                break
            position += self._fill(view, position, frames.HEADER_BYTES)
            if len(self._pending) < _SIZE_END:
                break
            size = frames.frame_bytes(self._pending)
            if refusal := self._refusal(size):
                events.append(refusal)
                self._ended = True
                break
            if len(self._pending) < frames.HEADER_BYTES:
                break
            position += self._fill(view, position, size)
            if len(self._pending) < size:
                self._place = FrameMemory.of(size, self._pending)
                if self._place is not None:
                    self._pending = bytearray()
                break
            events.append(self._take())
        return events

    def _fill(self, view: memoryview, position: int, wanted: int) -> int:
        count = max(0, min(wanted - len(self._pending), len(view) - position))
        self._pending += view[position : position + count]
        return count

    def _refusal(self, size: int) -> TooLarge | None:
        has_header = len(self._pending) >= frames.HEADER_BYTES
        if frames.HEADER_BYTES <= size <= self._frame_bytes_max:
            return None
        if size < frames.HEADER_BYTES or size > self._send_frame_bytes_max:
            head = frames.Head(frames.READ, 0)
            return TooLarge(None, size, self._head()[0] if has_header else head)
        if not has_header:
            return None
        head, code = self._head()
        return None if code in WITH_MESSAGES else TooLarge(code, size, head)

    def _head(self) -> tuple[frames.Head, int]:
        return frames.decode_header(self._pending)

    def _take(self) -> RequestFrame:
        frame, self._pending = self._pending, bytearray()
        return _whole_frame(frame)


class RequestStream:
    """Bytes in, events out. The events are those of `classic_frames.py`, where `more` is explained.

    `keeps_frames` says whether somebody wants the frames of long SENDs: otherwise they are
    converted in place, which is faster.
    """

    def __init__(
        self,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        send_frame_bytes_max: int = SEND_FRAME_BYTES_MAX,
        pool: FramePool | None = None,
        keeps_frames: Callable[[], bool] = _nobody,
    ) -> None:
        self._pool = pool
        self._keeps_frames = keeps_frames
        self._limits = frame_bytes_max, send_frame_bytes_max
        self._first = bytearray()
        self._decoder: RequestDecoder | VsrRequestDecoder | None = None

    def resume(self, *, has_heads: bool) -> None:
        """Go on with a connection whose framing another stream found out."""
        if has_heads:
            self._decoder = VsrRequestDecoder(self._pool, self._keeps_frames)
        else:
            self._decoder = RequestDecoder(begins=False)
        self._decoder.set_limits(*self._limits)

    def unfinished(self) -> bytes:
        """What came of a frame that has not come whole, between two calls of `feed`."""
        return bytes(self._first) if self._decoder is None else self._decoder.unfinished()

    @property
    def has_heads(self) -> bool:
        """Whether the peer speaks dialect C."""
        return isinstance(self._decoder, VsrRequestDecoder)

    def set_limits(self, frame_bytes_max: int, send_frame_bytes_max: int) -> None:
        """For the frames whose length is read from now on."""
        self._limits = frame_bytes_max, send_frame_bytes_max
        if self._decoder is not None:
            self._decoder.set_limits(*self._limits)

    @property
    def buffered_bytes(self) -> int:
        return len(self._first) if self._decoder is None else self._decoder.buffered_bytes

    def room(self, least: int, most: int) -> memoryview | None:
        return None if self._decoder is None else self._decoder.room(least, most)

    def complete(self) -> RequestEvent:
        assert self._decoder is not None, "it gave room"
        return self._decoder.complete()

    def more(self, events_max: int) -> list[RequestEvent]:
        return [] if self._decoder is None else self._decoder.more(events_max)

    def feed(self, data: Buffer, events_max: int = ALL) -> list[RequestEvent]:
        if self._decoder is not None:
            return self._decoder.feed(data, events_max)
        self._first += data
        if len(self._first) < _LENGTH_BYTES:
            return []
        numbered: bool | None = False
        if not any(self._first[:_LENGTH_BYTES]):
            numbered = frames.starts_here(self._first)
        if numbered is None:
            return []
        if numbered:
            self._decoder = VsrRequestDecoder(self._pool, self._keeps_frames)
        else:
            self._decoder = RequestDecoder()
        self._decoder.set_limits(*self._limits)
        first, self._first = self._first, bytearray()
        return self._decoder.feed(first, events_max)
