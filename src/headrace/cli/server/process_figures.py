"""What the machine says about this process, for GET_STATS: from /proc where there is one."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from headrace.broker.core import ProcessFigures

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""  # not Linux: that figure stays 0


def _table(text: str, unit: int = 1) -> dict[str, int]:
    """Lines `name: number ...`."""
    found = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number = rest.split()[:1]
        if number and number[0].isdigit():
            found[name] = int(number[0]) * unit
    return found


@dataclass(slots=True)
class Figures:
    """Callable; processor shares are over the time since the call before."""

    data_dir: str
    _last: tuple[float, float, float, float] = field(default=(0.0, 0.0, 0.0, 0.0))

    def __call__(self) -> ProcessFigures:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        now, used = time.monotonic(), usage.ru_utime + usage.ru_stime
        busy, total = _machine_ticks()
        before = self._last
        self._last = (now, used, busy, total)
        memory = _table(_read("/proc/meminfo"), unit=1024)
        io = _table(_read("/proc/self/io"))
        disk = shutil.disk_usage(self.data_dir)
        pages = _read("/proc/self/statm").split()
        machine = platform.uname()
        return ProcessFigures(
            pid=os.getpid(),
            cpu_percent=_percent(used - before[1], now - before[0]),
            total_cpu_percent=_percent(busy - before[2], total - before[3]),
            memory=int(pages[1]) * _PAGE_BYTES if pages else usage.ru_maxrss * 1024,
            total_memory=memory.get("MemTotal", 0),
            available_memory=memory.get("MemAvailable", 0),
            read_bytes=io.get("read_bytes", 0),
            written_bytes=io.get("write_bytes", 0),
            threads=threading.active_count(),
            free_disk=disk.free,
            total_disk=disk.total,
            hostname=machine.node,
            os_name=machine.system,
            os_version=machine.version,
            kernel_version=machine.release,
        )


def list_processes() -> str:
    """`pid state threads memory name`: of others not the arguments, which may hold secrets."""
    lines = [f"{'pid':>8} state threads {'rss_kib':>10} name"]
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        about = dict(
            line.split(":\t", 1) for line in _read(f"{folder}/status").splitlines() if ":\t" in line
        )
        if about:
            memory = about.get("VmRSS", "0 kB").split()[0]
            lines.append(
                f"{folder.name:>8} {about['State'][0]:>5} {about['Threads']:>7} {memory:>10}"
                f" {about['Name']}"
            )
    return "\n".join(lines) + "\n"


def _machine_ticks() -> tuple[float, float]:
    """Ticks the processors were busy, and all of them."""
    first = _read("/proc/stat").partition("\n")[0].split()[1:]
    ticks = [float(each) for each in first]
    return (sum(ticks) - sum(ticks[3:5]), sum(ticks)) if ticks else (0.0, 0.0)


def _percent(part: float, whole: float) -> float:
    return max(0.0, 100.0 * part / whole) if whole > 0 else 0.0
