"""A child that answers requests on its standard streams: for work that may kill who does it."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
from contextlib import suppress

from headrace.errors import DeadlineError, UnavailableError
from headrace.runtime.interfaces import Buffer

ANSWER_BYTES_MAX = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class SystemWorker:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, module: str) -> SystemWorker:
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", module),  # -P: no module of the current folder
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                start_new_session=True,  # Ctrl-C is not for it: it ends with its streams
            )
        except OSError as error:
            raise UnavailableError(f"cannot start a worker: {error.strerror}") from error
        return cls(process)

    async def ask(self, request: Buffer, *, seconds: float) -> bytes:
        answered = False
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(request)
            answered = True
        except TimeoutError:
            raise DeadlineError("the worker took too long", seconds=seconds) from None
        except (OSError, EOFError) as error:
            raise UnavailableError("the worker died of it") from error
        finally:
            if not answered:  # also when we are cancelled: its answer would be the next one's
                await self.close()
        return answer

    async def _exchange(self, request: Buffer) -> bytes:
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None
        assert reader is not None
        writer.write(_LENGTH.pack(memoryview(request).nbytes))
        writer.write(request)
        await writer.drain()
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > ANSWER_BYTES_MAX:
            raise EOFError(f"an answer of {length} bytes")
        return await reader.readexactly(length)

    async def close(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
