"""The last log lines in memory, for whoever asks the server for them."""

from __future__ import annotations

import logging
from collections import deque

from headrace.observability.logging import Format, make_formatter

BYTES_MAX = 1 << 20


class RecentLines(logging.Handler):
    """Keeps formatted lines, the newest `bytes_max` characters or so. Safe from any thread."""

    def __init__(self, *, format: Format = "text", bytes_max: int = BYTES_MAX) -> None:
        super().__init__()
        self.setFormatter(make_formatter(format, colors=False))
        self._lines: deque[str] = deque()
        self._length = 0
        self._length_max = bytes_max

    def emit(self, record: logging.LogRecord) -> None:
        # `Handler.handle` holds the lock around this.
        line = self.format(record)
        self._lines.append(line)
        self._length += len(line) + 1
        while self._length > self._length_max and len(self._lines) > 1:
            self._length -= len(self._lines.popleft()) + 1

    def text(self) -> str:
        self.acquire()
        try:
            return "".join(f"{line}\n" for line in self._lines)
        finally:
            self.release()
