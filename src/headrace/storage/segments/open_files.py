"""Open segment files, bounded in number.

A file is pinned while a thread works on it; only unpinned files are closed, the least recently
used first. More than the limit are open only while that many are pinned. A file that nobody has
used for a while is closed too: an idle range keeps none open.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from headrace.runtime import File
from headrace.storage.segments.segment import Handle, Segment


class FilePool:
    """Used from the event loop alone."""

    def __init__(self, open_files_max: int) -> None:
        self._limit = open_files_max
        self._segments: dict[Segment, int] = {}  # least recently used first -> round of last use
        self._round = 0

    def __len__(self) -> int:
        return len(self._segments)

    def pin(self, segment: Segment) -> File | None:
        """The open file, or None: the caller opens it and hands it over with `unpin`."""
        handle = segment.handle
        if handle is None:
            return None
        handle.pins += 1
        self._touch(segment)
        return handle.file

    def unpin(self, segment: Segment, file: File | None) -> None:
        """Give back what `pin` returned, or a file that the caller opened (None: it could not)."""
        if file is None:
            return
        handle = segment.handle
        if handle is not None and handle.file is file:
            handle.pins -= 1
        elif handle is None and not segment.removed:
            segment.handle = Handle(file)
            self._touch(segment)
        else:  # somebody else opened it meanwhile
            file.close()
            return
        if segment.removed:
            self.discard(segment)
        elif len(self._segments) > self._limit:
            self._shrink()

    def discard(self, segment: Segment) -> None:
        """The segment is gone: close its file as soon as nobody uses it."""
        segment.removed = True
        handle = segment.handle
        if handle is not None and handle.pins == 0:
            self._close(segment, handle)

    def close(self) -> None:
        """Close everything; whoever has pinned a file must be done."""
        for segment in list(self._segments):
            if segment.handle is not None:
                self._close(segment, segment.handle)

    def _touch(self, segment: Segment) -> None:
        self._segments.pop(segment, None)
        self._segments[segment] = self._round

    def take_idle(self) -> list[Segment]:
        """Ends a round: those not used since the call before the last one, for `close_idle`."""
        self._round += 1
        return [segment for segment, _ in takewhile(self._is_idle, self._segments.items())]

    def close_idle(self, segments: Iterable[Segment]) -> None:
        """Close those that are still idle."""
        for segment in segments:
            handle = segment.handle
            if handle is None or handle.pins:
                continue
            if self._is_idle((segment, self._segments[segment])):
                self._close(segment, handle)

    def _is_idle(self, entry: tuple[Segment, int]) -> bool:
        return entry[1] < self._round - 1

    def _shrink(self) -> None:
        for segment in list(self._segments):
            handle = segment.handle
            if handle is not None and handle.pins == 0:
                self._close(segment, handle)
                if len(self._segments) <= self._limit:
                    return

    def _close(self, segment: Segment, handle: Handle) -> None:
        handle.file.close()
        segment.handle = None
        self._segments.pop(segment, None)
        if segment.closed and segment.saved_position == segment.position:
            segment.index = None  # it comes back from its file with the next read
