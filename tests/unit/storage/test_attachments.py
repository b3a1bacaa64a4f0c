"""Bytes that a range is made with: there with its metadata or not at all, read when asked for."""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace.errors import CorruptionError
from headrace.storage.layout import ATTACHMENT
from tests.simulator.disk import PowerCut
from tests.unit.storage.support import (
    FOLDER,
    KEY,
    append_many,
    cut_power,
    open_store,
    read_all,
    simulated_disk,
)

PATH = f"{FOLDER}/streams/{KEY.stream_id}/{KEY.range_index}/{ATTACHMENT}"


@pytest.mark.parametrize("attachment", [None, b"", b"x" * 10_000])
async def test_an_attachment_survives(attachment: bytes | None) -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=4, attachment=attachment)
    assert await log.attachment() == attachment
    assert disk.exists(PATH) is bool(attachment)
    await cut_power(disk, store)
    store = await open_store(disk)
    log = store.range(KEY)
    written = await append_many(log, 3)
    await log.seal()
    await store.close()
    store = await open_store(disk)
    assert await store.range(KEY).attachment() == attachment
    assert await read_all(store.range(KEY)) == written
    await store.delete_range(KEY)
    assert not disk.exists(PATH)
    await store.close()


async def test_the_first_attachment_stays() -> None:
    store = await open_store(simulated_disk())
    await store.create_range(KEY, start_offset=0, attachment=b"first")
    log = await store.create_range(KEY, start_offset=0, attachment=b"second")
    assert await log.attachment() == b"first"
    await store.close()


@pytest.mark.parametrize("operations", range(1, 7))
async def test_metadata_never_comes_without_its_attachment(operations: int) -> None:
    disk = simulated_disk(operations)
    store = await open_store(disk)
    disk.cut_before(operations)
    with suppress(PowerCut):
        await store.create_range(KEY, start_offset=0, attachment=b"attached")
    await store.abort()
    disk.power_cut()
    store = await open_store(disk)
    if any(state.key == KEY for state in store.ranges()):
        assert await store.range(KEY).attachment() == b"attached"
    log = await store.create_range(KEY, start_offset=0, attachment=b"attached")
    assert await log.attachment() == b"attached"
    await store.close()


@pytest.mark.parametrize("damage", ["flipped", "lost"])
async def test_a_damaged_attachment_is_noticed_and_costs_nothing_else(damage: str) -> None:
    disk = simulated_disk()
    store = await open_store(disk)
    log = await store.create_range(KEY, start_offset=0, attachment=b"attached")
    written = await append_many(log, 3)
    if damage == "flipped":
        disk.flip_bit(PATH, 6, 2)
    else:
        disk.remove(PATH)
    with pytest.raises(CorruptionError):
        await log.attachment()
    assert await read_all(log) == written
    await store.close()
