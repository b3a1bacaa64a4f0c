from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    FormatError,
    LockedError,
    StorageError,
)
from headrace.placement.metadata.records import (
    CounterRecord,
    LeaseRecord,
    NodeRecord,
    Put,
    RangeRecord,
    Record,
    Remove,
    StreamRecord,
)
from headrace.placement.metadata.store import (
    MemoryStore,
    SqliteStore,
    Store,
    open_database,
    schema_version,
)
from headrace.runtime.system import system_runtime

RECORDS: list[Record] = [
    StreamRecord(stream_id=2, name="b"),
    StreamRecord(stream_id=10, name="a", deleted_ms=5),
    RangeRecord(stream_id=2, range_index=0, start=0, end=9, replicas=(1, 2), writer_epoch=3),
    RangeRecord(stream_id=2, range_index=1, start=9, sealing=True),
    NodeRecord(node_id=1, address="h:1", store_id="u"),
    LeaseRecord(name="broker", epoch=4, holder="x", duration_ms=100),
    CounterRecord(name="stream", bound=100),
]


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    sqlite = await SqliteStore.open(system_runtime(), str(tmp_path / "p.db"))
    yield sqlite
    await sqlite.close()


def keyed(records: list[Record]) -> dict[tuple[str, str], Record]:
    return {(record.table, record.key): record for record in records}


async def test_records_come_back(store: Store) -> None:
    await store.commit([Put(record) for record in RECORDS])
    assert keyed(await store.load()) == keyed(RECORDS)
    changed = StreamRecord(stream_id=2, name="b", retention_period_ms=7)
    await store.commit([Put(changed), Remove(RECORDS[1])])
    expected = keyed(RECORDS) | keyed([changed])
    del expected[RECORDS[1].table, RECORDS[1].key]
    assert keyed(await store.load()) == expected


async def test_large_transactions_are_refused_whole(store: Store) -> None:
    operations = [Put(StreamRecord(stream_id=i)) for i in range(101)]
    with pytest.raises(StorageError):
        await store.commit(operations)
    assert await store.load() == []
    await store.commit(operations[:100])
    assert len(await store.load()) == 100


async def test_concurrent_commits_all_land(store: Store) -> None:
    await asyncio.gather(*(store.commit([Put(StreamRecord(stream_id=i))]) for i in range(60)))
    assert len(await store.load()) == 60


async def test_sqlite_keeps_everything_over_a_reopen(tmp_path: Path) -> None:
    path = str(tmp_path / "p.db")
    store = await SqliteStore.open(system_runtime(), path)
    await store.commit([Put(record) for record in RECORDS])
    with pytest.raises(LockedError):
        await SqliteStore.open(system_runtime(), path)
    await store.close()
    again = await SqliteStore.open(system_runtime(), path)
    assert keyed(await again.load()) == keyed(RECORDS)
    await again.close()


async def test_sqlite_syncs_every_commit(tmp_path: Path) -> None:
    store = await SqliteStore.open(system_runtime(), str(tmp_path / "p.db"))
    (synchronous,) = store._connection.execute("PRAGMA synchronous").fetchone()
    (journal,) = store._connection.execute("PRAGMA journal_mode").fetchone()
    assert (synchronous, journal) == (2, "wal")
    await store.close()


async def test_a_full_disk_undoes_the_transaction(tmp_path: Path) -> None:
    store = await SqliteStore.open(system_runtime(), str(tmp_path / "p.db"))
    await store.commit([Put(StreamRecord(stream_id=1))])
    (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
    store._connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(DiskFullError):
        await store.commit([Put(StreamRecord(stream_id=i, name="x" * 200)) for i in range(2, 100)])
    assert [r.key for r in await store.load()] == [StreamRecord(stream_id=1).key]
    store._connection.execute(f"PRAGMA max_page_count={pages * 100}")
    await store.commit([Put(StreamRecord(stream_id=2))])
    assert len(await store.load()) == 2
    await store.close()


async def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    path.write_bytes(b"not a database at all, but long enough to be looked at" * 20)
    with pytest.raises(CorruptionError):
        await SqliteStore.open(system_runtime(), str(path))


async def test_unreadable_records_are_reported(tmp_path: Path) -> None:
    path = str(tmp_path / "p.db")
    store = await SqliteStore.open(system_runtime(), path)
    await store.close()
    connection = sqlite3.connect(path)
    connection.execute("INSERT INTO streams VALUES ('x', X'C1')")
    connection.commit()
    connection.close()
    store = await SqliteStore.open(system_runtime(), path)
    with pytest.raises(CorruptionError):
        await store.load()
    await store.close()


async def test_an_older_schema_is_migrated_all_the_way_or_not_at_all(tmp_path: Path) -> None:
    path = str(tmp_path / "p.db")
    store = await SqliteStore.open(system_runtime(), path)
    await store.commit([Put(StreamRecord(stream_id=1))])
    await store.close()

    def rename(connection: sqlite3.Connection) -> None:
        connection.execute("UPDATE streams SET key = key || '-2'")

    def fail(connection: sqlite3.Connection) -> None:
        raise RuntimeError("cut")

    with pytest.raises(RuntimeError):
        open_database(path, migrations={1: rename, 2: fail}, current=3)
    with pytest.raises(FormatError, match="can no longer be read"):
        open_database(path, migrations={2: rename}, current=3)
    connection = open_database(path, migrations={1: rename}, current=2)
    ((key,),) = connection.execute("SELECT key FROM streams")
    assert (key, schema_version(connection)) == (f"{StreamRecord(stream_id=1).key}-2", 2)
    connection.close()
    with pytest.raises(FormatError, match="knows up to 1"):
        await SqliteStore.open(system_runtime(), path)
