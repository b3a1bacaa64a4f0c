"""Reading a stretch of a segment without its index, and what tells one file from another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.errors import NotFoundError, StorageError
from headrace.runtime.interfaces import File
from headrace.runtime.system.disk import SystemDisk
from headrace.storage import RangeLog, StorageSettings
from headrace.storage.segments.reader import FreshDamage, Located, StretchReader
from headrace.wire.sbp.records import split
from tests.simulator.disk import SimulatedDisk
from tests.unit.storage.support import KEY, SMALL, append_many, open_store, simulated_disk

LARGE = StorageSettings(
    segment_bytes_max=16 << 20, index_interval_bytes=4096, idle_ms=3_600_000, min_free_bytes=0
)


class CountedFile:
    def __init__(self, file: File) -> None:
        self._file = file
        self.read_bytes = 0

    def pread(self, length: int, offset: int) -> bytes:
        data = self._file.pread(length, offset)
        self.read_bytes += len(data)
        return data

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


async def log_of(
    sizes: list[int], settings: StorageSettings = LARGE
) -> tuple[SimulatedDisk, RangeLog, list[bytes]]:
    disk = simulated_disk()
    disk.machine_name = "here"
    store = await open_store(disk, settings)
    log = await store.create_range(KEY, start_offset=0)
    written = []
    for size in sizes:
        written += await append_many(log, 1, size=size, records=2)
    return disk, log, written


def batches(views: list[memoryview]) -> list[bytes]:
    return [bytes(batch) for view in views for _, batch in split(view)]


async def located_at(log: RangeLog, offset: int) -> Located:
    located = await log.locate(offset)
    assert located is not None
    return located


@pytest.mark.parametrize("size", [200, 30_000, 300_000])
@pytest.mark.parametrize("max_bytes", [1, 65_000, 1 << 20])
async def test_batches_of_one_size_are_read_about_once(size: int, max_bytes: int) -> None:
    disk, log, written = await log_of([size] * 12)
    located = await located_at(log, 0)
    file = CountedFile(disk.open_same(located.path, located.identity))
    reader = StretchReader(file, located.stretch)  # type: ignore[arg-type]  # it is one in effect
    found = []
    while not reader.is_over:
        views = reader.read(reader.next_offset, max_bytes)
        assert sum(map(len, views)) <= max(max_bytes, size)
        found += batches(views)
    assert found == written
    assert reader.bytes == sum(map(len, written))
    assert file.read_bytes <= sum(map(len, written)) * 1.1 + 64 * 1024


async def test_every_offset_of_batches_of_any_size() -> None:
    sizes = [100, 100_000, 70, 5_000, 250_000, 90, 80, 66_000, 130_000, 70]
    disk, log, written = await log_of(sizes)
    for offset in range(2 * len(sizes)):
        located = await located_at(log, offset)
        reader = StretchReader(disk.open_same(located.path, located.identity), located.stretch)
        found = []
        while not reader.is_over:
            found += batches(reader.read(max(offset, reader.next_offset), 150_000))
        assert found == written[offset // 2 :]


async def test_what_is_not_committed_or_was_trimmed_is_not_located() -> None:
    _, log, _ = await log_of([150] * 60, SMALL)
    located = await located_at(log, 0)
    assert located.stretch.stop.offset < log.committed_offset  # one file's
    assert await log.locate(log.committed_offset) is None
    assert (await located_at(log, 118)).stretch.stop.offset == 120
    await log.trim(50)
    assert await log.locate(49) is None
    assert (await located_at(log, 50)).stretch.start.offset <= 50
    store = await open_store(simulated_disk())
    replica = await store.create_range(KEY, start_offset=0, replicas=(1, 2), ack_quorum=2)
    await append_many(replica, 5, size=100)
    assert await replica.locate(0) is None  # on this disk alone
    replica.set_committed(3)
    assert (await located_at(replica, 0)).stretch.stop.offset == 3


async def test_damage_is_met_and_then_not_located() -> None:
    disk, log, written = await log_of([1000] * 5)
    located = await located_at(log, 0)
    disk.flip_bit(located.path, disk.files()[located.path].index(written[2]) + 500)
    reader = StretchReader(disk.open_same(located.path, located.identity), located.stretch)
    assert batches(reader.read(0, 1500)) == written[:1]
    assert batches(reader.read(2, 1)) == written[1:2]
    with pytest.raises(FreshDamage):
        reader.read(4, 1)
    await log.verify()
    assert await log.locate(4) is None
    assert (await located_at(log, 0)).stretch.stop.offset == 4
    assert (await located_at(log, 6)).stretch.stop.offset == 10


def test_only_the_very_file_is_opened(tmp_path: Path) -> None:
    disk = SystemDisk()
    path, copy, link, pipe = (str(tmp_path / name) for name in ("file", "copy", "link", "pipe"))
    for each in (path, copy):
        Path(each).write_bytes(b"the same bytes")
    os.symlink(path, link)
    os.mkfifo(pipe)
    full, identity = disk.identify(os.path.relpath(path))
    assert full == path
    assert identity.startswith(disk.machine())
    assert disk.machine() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    file = disk.open_same(path, identity)
    assert file.pread(100, 0) == b"the same bytes"
    for other in (copy, link, str(tmp_path / "none")):
        with pytest.raises((NotFoundError, StorageError)):
            disk.open_same(other, identity)
    with pytest.raises(NotFoundError):
        disk.open_same(pipe, disk.identify(pipe)[1])  # and it does not wait for a writer
    os.unlink(path)
    assert file.pread(100, 0) == b"the same bytes"  # who has it open keeps it
    Path(path).write_bytes(b"another file")
    with pytest.raises(NotFoundError):
        disk.open_same(path, identity + "0")
    file.close()
