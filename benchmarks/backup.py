"""`headrace backup`, `verify` and `restore` of a real data directory, each a process of its own.

The limit of all three is a bare copy of the same files that computes their CRC32C on the way: what
is read must be read, and what is written be written. Processor time counts, of the whole process
with its start, so that the disk and the neighbours do not.

Run alone: `python -m benchmarks backup`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headrace.client import connect_sync

MESSAGES, MESSAGE_BYTES, BATCH = 480_000, 1000, 1000
ROUNDS = 2
START_SECONDS = 60.0
_HEADRACE = (sys.executable, "-m", "headrace.cli.main")
_BARE = """
import pathlib, sys
from crc32c import crc32c
source, target = map(pathlib.Path, sys.argv[1:])
for path in source.rglob("*"):
    if not path.is_file(): continue
    copy = target / path.relative_to(source)
    copy.parent.mkdir(parents=True, exist_ok=True)
    crc = 0
    with path.open("rb") as read, copy.open("wb") as write:
        while data := read.read(1 << 20):
            crc = crc32c(data, crc)
            write.write(data)
"""


def run() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("HEADRACE_BENCH_DIR")) as name:
        folder = Path(name)
        data = folder / "data"
        with _serving(data) as address:
            _fill(address)
        size = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
        best: dict[str, tuple[float, float]] = {}
        for number in range(ROUNDS):
            backup, back = str(folder / f"backup-{number}"), str(folder / f"back-{number}")
            steps = {
                "bare": [sys.executable, "-c", _BARE, str(data), str(folder / f"bare-{number}")],
                "backup": [*_HEADRACE, "backup", backup, "--data-dir", str(data)],
                "verify": [*_HEADRACE, "verify", backup],
                "restore": [*_HEADRACE, "restore", backup, "--data-dir", back],
            }
            for step, command in steps.items():
                best[step] = min(best.get(step, (float("inf"), 0.0)), _used(command))
        yield from _rows(size, best)


def _rows(size: int, best: dict[str, tuple[float, float]]) -> Iterator[dict[str, Any]]:
    limit = best.pop("bare")[0]
    for step, (seconds, memory_bytes) in best.items():
        yield {
            "name": f"{step} of {size / 1e6:.0f} MB",
            "value": size / 1e6 / seconds,
            "unit": "MB/CPU s",
            "limit": size / 1e6 / limit,
            "ratio": limit / seconds,
            "cpu_s": seconds,
            "memory_mb": memory_bytes / 1e6,
        }


def _used(command: list[str]) -> tuple[float, float]:
    """Processor seconds and the most memory of a child."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


@contextmanager
def _serving(data: Path) -> Iterator[str]:
    ready = data.parent / "ready.json"
    command = [*_HEADRACE, "up", "--dev", "--data-dir", str(data), "--ready-file", str(ready)]
    for port in ("iggy", "placement", "node", "http"):
        command += [f"--{port}-port", "0"]
    process = subprocess.Popen([*command, "--quic-port", "-1"], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        assert process.poll() is None, "ended at start"
        assert time.monotonic() < deadline, "not ready in time"
        time.sleep(0.05)
    try:
        yield json.loads(ready.read_text())["iggy"]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def _fill(address: str) -> None:
    payload = os.urandom(MESSAGE_BYTES)
    with connect_sync(f"iggy://iggy:iggy@{address}") as client:
        client.create_topic("bench/backup", partitions=4)
        for _ in range(MESSAGES // BATCH):
            client.send_many("bench/backup", [payload] * BATCH)
