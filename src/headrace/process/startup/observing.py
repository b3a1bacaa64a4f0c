"""What a process that serves tells others about itself: its HTTP endpoint, its traces, its figures.

The figures are what the machine says about the process, for GET_STATS and for a snapshot of the
server.
"""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from headrace.observability import tracing
from headrace.observability.logging import (
    LOG_FORMAT_VARIABLE,
    TRACES_RATIO_VARIABLE,
    TRACES_VARIABLE,
)

if TYPE_CHECKING:
    from headrace.broker.core import ProcessFigures
    from headrace.config.settings import Settings
    from headrace.process.http_server import Endpoint
    from headrace.web.metrics.process import ObservedRole, ProcessReading


def make_endpoint(settings: Settings, roles: Sequence[ObservedRole]) -> Endpoint:
    from headrace.process.http_server import Endpoint
    from headrace.process.startup.settings import read_reference
    from headrace.runtime.system import system_runtime

    token = settings.observability.metrics_token
    return Endpoint(
        system_runtime(),
        settings,
        roles,
        token=read_reference(token, "observability.metrics_token") if token else "",
        read_process=read_process,
    )


def read_process() -> ProcessReading:
    from headrace.web.metrics.process import ProcessReading

    return ProcessReading(
        memory_bytes=psutil.Process().memory_info().rss, threads=threading.active_count()
    )


@contextmanager
def observing(settings: Settings, role: str, log_format: str) -> Iterator[None]:
    """Record traces while the process serves, if the settings say where to. Its children log and
    trace likewise."""
    observability = settings.observability
    os.environ[LOG_FORMAT_VARIABLE] = log_format
    os.environ[TRACES_VARIABLE] = observability.traces_endpoint
    os.environ[TRACES_RATIO_VARIABLE] = str(observability.traces_ratio)
    if not observability.traces_endpoint:
        yield
        return
    tracing.start(
        observability.traces_endpoint,
        service=f"headrace-{role}",
        instance=f"{os.uname().nodename}:{os.getpid()}",
        ratio=observability.traces_ratio,
    )
    try:
        yield
    finally:
        tracing.stop()


@dataclass(slots=True)
class MachineFigures:
    """What the machine says about this process and about itself, whenever it is called.

    Processor shares are over the time since the call before."""

    data_dir: str
    _process: psutil.Process = field(default_factory=psutil.Process)
    _last: tuple[float, float, float, float] = field(default=(0.0, 0.0, 0.0, 0.0))

    def __call__(self) -> ProcessFigures:
        from headrace.broker.core import ProcessFigures  # a data node has no use for a broker

        processor = self._process.cpu_times()
        now, used = time.monotonic(), processor.user + processor.system
        busy, total = _machine_seconds()
        before = self._last
        self._last = (now, used, busy, total)
        memory = psutil.virtual_memory()
        read_bytes, written_bytes = self._disk_bytes()
        disk = shutil.disk_usage(self.data_dir)
        machine = platform.uname()
        return ProcessFigures(
            pid=os.getpid(),
            cpu_percent=_percent(used - before[1], now - before[0]),
            total_cpu_percent=_percent(busy - before[2], total - before[3]),
            memory=self._process.memory_info().rss,
            total_memory=memory.total,
            available_memory=memory.available,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            threads=threading.active_count(),
            free_disk=disk.free,
            total_disk=disk.total,
            hostname=machine.node,
            os_name=machine.system,
            os_version=machine.version,
            kernel_version=machine.release,
        )

    def _disk_bytes(self) -> tuple[int, int]:
        """Read and written; 0 where the system does not say: macOS, or a container that may not."""
        try:
            found = self._process.io_counters()
        except (AttributeError, psutil.Error, OSError):
            return 0, 0
        return found.read_bytes, found.write_bytes


def list_processes() -> str:
    """`pid state threads memory name`: of others not the arguments, which may hold secrets."""
    lines = [f"{'pid':>8} {'state':<10} threads {'rss_kib':>10} name"]
    wanted = ["pid", "status", "num_threads", "memory_info", "name"]
    for process in psutil.process_iter(wanted):
        about = process.info
        memory = about["memory_info"].rss // 1024 if about["memory_info"] else 0
        lines.append(
            f"{about['pid']:>8} {about['status']:<10} {about['num_threads'] or 0:>7} {memory:>10}"
            f" {about['name']}"
        )
    return "\n".join(lines) + "\n"


def _machine_seconds() -> tuple[float, float]:
    """Seconds that the processors were busy, and all of them."""
    times = psutil.cpu_times()
    total = sum(times)
    return total - times.idle - getattr(times, "iowait", 0.0), total


def _percent(part: float, whole: float) -> float:
    return max(0.0, 100.0 * part / whole) if whole > 0 else 0.0
