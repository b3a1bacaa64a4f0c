"""One at a time among threads: Spark calls back in threads of its own."""

from __future__ import annotations

import threading
from types import TracebackType


class Turn:
    """Held in a `with`; not twice by the same thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
