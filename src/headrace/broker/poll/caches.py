"""The memory from which polls are answered: its parts, and the one bound that they share.

- `read_ahead`: stored batches that were fetched beyond what a poll asked for, for all readers.
- `replies`: the frames of SENDs as they came, and what was made of stored batches; for readers in
  dialect C, and for readers of messages that came without checksums.
- `frame_pool`: memory of large frames that connections read, lent to `replies` while it keeps a
  frame. The pool holds nothing but free memory, so it has a small bound of its own.

All that is kept counts against one bound, and the part that holds most makes room: a part that
nobody needs leaves the memory to the others. `docs/adr/0009-poll-caches.md` says why the parts are
not one, and why the newest batches of the data node are not here.
"""

from __future__ import annotations

from headrace.broker.poll.readahead import ReadAhead
from headrace.broker.poll.replies import ReplyCache
from headrace.wire.iggy.request_stream import FramePool


class PollCaches:
    """Owner of everything that a broker keeps in memory to answer polls."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.read_ahead = ReadAhead(bytes_max, self._make_room)
        self.replies = ReplyCache(bytes_max, self._make_room)
        self.frame_pool = FramePool()

    @property
    def bytes(self) -> int:
        return self.read_ahead.bytes + self.replies.bytes

    def _make_room(self) -> None:
        ahead, replies = self.read_ahead, self.replies
        while ahead.bytes + replies.bytes > self._bytes_max:
            if ahead.bytes > replies.bytes:
                ahead.forget_oldest()
            else:
                replies.forget_oldest()
