"""Child processes of the system runtime; `launcher` is their first moment."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.errors import DeadlineError, NotFoundError, UnavailableError
from headrace.runtime.interfaces import UNKNOWN_EXIT, Buffer
from headrace.runtime.system.disk import storage_error

ANSWER_BYTES_MAX = 16 * 1024 * 1024
_LENGTH = struct.Struct(">I")
_LAUNCHER = str(Path(__file__).with_name("launcher.py"))
_INHERITED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")


class SystemWorker:
    """A child that answers requests on its standard streams: for work that may kill who does it."""

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


class SystemProcess:
    """A child that leads a session, and so a process group, of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._watch = asyncio.get_running_loop().create_task(self._wait_and_clean())

    async def _wait_and_clean(self) -> int:
        status = await self._process.wait()
        # What it left behind in its group (a JVM, Python workers) ends with it. Here and not
        # later: once the group is empty its number may belong to somebody else.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return status

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode

    async def wait(self) -> int:
        return await asyncio.shield(self._watch)

    def terminate(self) -> None:
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class AdoptedProcess:
    """A process that another life of this program started. Its end is seen through a descriptor of
    it, which stays true when its number is given to somebody else."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self.exit_status: int | None = None
        self._descriptor = descriptor
        self._ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._on_end)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        # Its group is empty or what it left behind; the number is taken as long as one is there.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.exit_status = UNKNOWN_EXIT
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return UNKNOWN_EXIT

    def terminate(self) -> None:
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: signal.Signals) -> None:
        if self.exit_status is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)


class SystemProcesses:
    async def adopt(self, marks: Mapping[str, str]) -> AdoptedProcess | None:
        wanted = {f"{name}={value}".encode() for name, value in marks.items()}
        for name in os.listdir("/proc"):
            if name.isdigit() and _is_leader_with(int(name), wanted):
                try:
                    descriptor = os.pidfd_open(int(name))
                except ProcessLookupError:
                    continue
                if _is_leader_with(int(name), wanted):  # still the one we looked at
                    return AdoptedProcess(int(name), descriptor)
                os.close(descriptor)
        return None

    async def start_worker(self, module: str) -> SystemWorker:
        return await SystemWorker.start(module)

    def memory_bytes(self) -> int:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        except OSError:
            return total
        return min(total, int(limit)) if limit.isdigit() else total

    def cpu_ns(self) -> int:
        ticks = sum(_ticks(pid) for pid in _tree(os.getpid()))
        return ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    async def spawn(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: str,
        output: str,
        outlives: bool = False,
    ) -> SystemProcess:
        # The kernel sends PDEATHSIG when the *thread* that forked ends, not the process.
        assert threading.current_thread() is threading.main_thread(), "spawn from the main thread"
        if shutil.which(arguments[0], path=environment.get("PATH", os.defpath)) is None:
            raise NotFoundError("no such program", program=arguments[0])
        locale = environment.get("LC_CTYPE", "")
        parent = "0" if outlives else str(os.getpid())
        launch = [sys.executable, "-I", "-S", _LAUNCHER, parent, locale, *arguments]
        try:
            log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error(error, output) from error
        try:
            process = await asyncio.create_subprocess_exec(
                *launch,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise storage_error(error, folder) from error
        finally:
            os.close(log)
        return SystemProcess(process)


def _is_leader_with(pid: int, wanted: set[bytes]) -> bool:
    """Whether this is the first process of its session and was started with these variables. What
    it started has them too, and may lead a group of its own, as PySpark's workers do."""
    try:
        if os.getsid(pid) != pid:
            return False
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # gone, or somebody else's
        return False
    return wanted.issubset(environment)


def _tree(pid: int) -> list[int]:
    """A process and everything below it that lives."""
    found = [pid]
    for one in found:  # it grows while we walk
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{one}/task"):
                children = Path(f"/proc/{one}/task/{thread}/children").read_text()
                found += map(int, children.split())
    return found


def _ticks(pid: int) -> int:
    """User and system time of a process, and of its children that it has waited for."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0  # it has just ended
    fields = text.rpartition(")")[2].split()  # its name, before, may hold anything
    return sum(map(int, fields[11:15]))
