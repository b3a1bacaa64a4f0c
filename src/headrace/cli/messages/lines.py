"""Lines of a file or a pipe, as they come, for code that must not stand still meanwhile."""

from __future__ import annotations

import asyncio
import io
import os
import queue
import sys
import threading
from contextlib import suppress
from typing import BinaryIO

from headrace.errors import ConfigError

LINES_WAITING_MAX = 10_000


def open_source(file: str) -> BinaryIO:
    """A file, or `-` for standard input. ConfigError when it cannot be opened."""
    try:
        if file != "-":
            return open(file, "rb")
        # Not sys.stdin itself, whose lock a thread that still reads would keep when we end.
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except io.UnsupportedOperation:
        return sys.stdin.buffer  # it is no file of the system
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


class Lines:
    """Read by a thread of its own, which waits while too many are not yet taken. It does not keep
    the process from ending: nobody can call it back from a pipe."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._waiting: queue.Queue[bytes | None] = queue.Queue(LINES_WAITING_MAX)
        self._there = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ended = False
        self._error: OSError | None = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            for line in self._source:
                self._put(line.rstrip(b"\r\n"))
        except OSError as error:
            self._error = error
        if self._source is not sys.stdin.buffer:
            self._source.close()
        self._put(None)

    def _put(self, line: bytes | None) -> None:
        self._waiting.put(line)
        if not self._there.is_set():
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._there.set)

    async def take(self, count_max: int, bytes_max: int) -> list[bytes]:
        """What is there by now, at least one line; none at the end."""
        taken: list[bytes] = []
        size = 0
        while not taken and not self._ended:
            await self._there.wait()
            self._there.clear()  # first: what is put from now on sets it again
            while len(taken) < count_max and size < bytes_max:
                try:
                    line = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if line is None:
                    self._ended = True
                    break
                taken.append(line)
                size += len(line)
            else:
                self._there.set()
        if self._error is not None and not taken:
            raise ConfigError(f"cannot read on: {self._error.strerror}") from self._error
        return taken
