"""What the machine says about this process, for GET_STATS and for a snapshot of the server."""

from __future__ import annotations

import os
import platform
import shutil
import threading
import time
from dataclasses import dataclass, field

import psutil

from headrace.broker.core import ProcessFigures


@dataclass(slots=True)
class Figures:
    """Callable; processor shares are over the time since the call before."""

    data_dir: str
    _process: psutil.Process = field(default_factory=psutil.Process)
    _last: tuple[float, float, float, float] = field(default=(0.0, 0.0, 0.0, 0.0))

    def __call__(self) -> ProcessFigures:
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
