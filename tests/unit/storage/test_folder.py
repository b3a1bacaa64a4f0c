"""format.json: new, newer, older, foreign; and a directory of every released version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from headrace.errors import FormatError
from headrace.runtime import Disk
from headrace.runtime.system import system_runtime
from headrace.storage import CorruptSpan, LogStore, RangeKey, StorageSettings
from headrace.storage.folder import open_format
from headrace.wire.sbp.messages import Durability
from tests.simulator.runtime import PowerCut, SimulatedRandom
from tests.unit.storage import make_fixture, make_fixture_v2
from tests.unit.storage.support import append_many, read_all, simulated_disk

FOLDER = "/data"
PATH = f"{FOLDER}/format.json"
RANDOM = SimulatedRandom(1)


def test_a_new_directory_gets_the_current_version_and_keeps_its_uuid() -> None:
    disk = simulated_disk()
    disk.make_folder(FOLDER)
    made = open_format(disk, FOLDER, RANDOM)
    assert json.loads(disk.read(PATH)) == {"version": 2, "store_uuid": str(made.store_uuid)}
    disk.power_cut()
    assert open_format(disk, FOLDER, RANDOM) == made


def test_a_newer_version_is_refused_with_advice() -> None:
    disk = simulated_disk()
    disk.make_folder(FOLDER)
    content = b'{"version": 3, "store_uuid": "00000000-0000-4000-8000-000000000000"}'
    disk.write_atomic(PATH, content)
    with pytest.raises(FormatError, match="install the release"):
        open_format(disk, FOLDER, RANDOM)
    assert disk.read(PATH) == content


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": "x"}', b"\xff"])
def test_what_is_not_ours_is_refused(content: bytes) -> None:
    disk = simulated_disk()
    disk.make_folder(FOLDER)
    disk.write_atomic(PATH, content)
    with pytest.raises(FormatError):
        open_format(disk, FOLDER, RANDOM)


def test_streams_without_a_format_are_refused() -> None:
    disk = simulated_disk()
    disk.make_folder(f"{FOLDER}/streams/3")
    with pytest.raises(FormatError, match=r"format\.json"):
        open_format(disk, FOLDER, RANDOM)


def test_older_versions_are_migrated_step_by_step_and_again_after_a_cut() -> None:
    disk = simulated_disk()
    disk.make_folder(FOLDER)
    made = open_format(disk, FOLDER, RANDOM, current=1)
    steps: list[int] = []

    def first(disk: Disk, folder: str) -> None:
        steps.append(1)
        disk.write_atomic(f"{folder}/one", b"")

    def second(disk: Disk, folder: str) -> None:
        assert disk.exists(f"{folder}/one")
        steps.append(2)
        disk.write_atomic(f"{folder}/two", b"")

    migrations = {1: first, 2: second}
    disk.cut_before(3)  # in the second step
    with pytest.raises(PowerCut):
        open_format(disk, FOLDER, RANDOM, migrations=migrations, current=3)
    disk.power_cut()
    found = open_format(disk, FOLDER, RANDOM, migrations=migrations, current=3)
    assert (found.version, found.store_uuid) == (3, made.store_uuid)
    assert steps == [1, 2, 2]
    with pytest.raises(FormatError, match="earlier release"):
        open_format(disk, FOLDER, RANDOM, migrations={}, current=4)


async def test_a_directory_of_version_1_opens(tmp_path: Path) -> None:
    """Made once by `make_fixture`; it must open for ever, from a copy because opening writes."""
    folder = tmp_path / "store"
    shutil.copytree(make_fixture.FOLDER, folder)
    store = await LogStore.open(system_runtime(), str(folder), StorageSettings())
    assert not store.clean  # it was killed in the middle of a write
    assert store.store_uuid == make_fixture.STORE_UUID
    for level in Durability:
        log = store.range(RangeKey(1, int(level)))
        assert (log.durability, log.writer_epoch) == (level, 5)
        assert await read_all(log) == make_fixture.batches(40)
        await append_many(log, 1)
    sealed = store.range(RangeKey(2, 0))
    assert (sealed.start_offset, sealed.end_offset) == (31, 40)
    assert await read_all(sealed) == make_fixture.batches(40)[31:]
    assert sealed.state().corrupt == ()
    damaged = store.range(RangeKey(3, 0))
    assert damaged.state().corrupt == (CorruptSpan(1, 2),)
    torn = store.range(RangeKey(4, 0))
    assert await read_all(torn) == make_fixture.batches(3)
    assert torn.state().truncated_bytes > 0
    await store.close()


async def test_a_directory_of_version_2_opens(tmp_path: Path) -> None:
    """Killed while its journal named files, one of which has lost its last bytes since."""
    folder = tmp_path / "store"
    shutil.copytree(make_fixture_v2.FOLDER, folder)
    store = await LogStore.open(system_runtime(), str(folder), StorageSettings())
    assert store.store_uuid == make_fixture_v2.STORE_UUID
    assert store.statistics()["journal_replayed"] == 3 * make_fixture_v2.RANGES
    for stream_id in range(make_fixture_v2.RANGES):
        log = store.range(RangeKey(stream_id, 0))
        assert await read_all(log) == make_fixture.batches(4)
        assert log.state().corrupt == ()
        await append_many(log, 1)
    await store.close()
