"""Where the placement manager keeps its records: each transaction is atomic and durable.

`SqliteStore` is the embedded form (write-ahead log, synchronous=FULL). SQLite opens its files by
itself and so bypasses the runtime seam; the simulator uses `MemoryStore`, which survives a
simulated crash by being held across it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.errors import (
    CorruptionError,
    DiskFullError,
    FormatError,
    LockedError,
    StorageError,
)
from headrace.placement.metadata.records import (
    OPERATIONS_MAX,
    Operation,
    Operations,
    Put,
    Record,
    Table,
    decode_record,
    encode_record,
)
from headrace.runtime.interfaces import Runtime

SCHEMA_VERSION = 1

Migration = Callable[[sqlite3.Connection], None]
MIGRATIONS: dict[int, Migration] = {}
"""From version n to n + 1, within the transaction that also writes the new number."""


class Store(ABC):
    @abstractmethod
    async def load(self) -> list[Record]:
        """Everything, by table and key."""

    @abstractmethod
    async def _commit(self, operations: Operations) -> None: ...

    async def commit(self, operations: Operations) -> None:
        """All operations or none; durable on return.

        DiskFullError: none of them happened. Any other StorageError: unknown, stop using the store.
        """
        if len(operations) > OPERATIONS_MAX:
            raise StorageError("transaction too large", operations=len(operations))
        if operations:
            await self._commit(operations)

    @abstractmethod
    async def close(self) -> None: ...


class MemoryStore(Store):
    """Outlives the service that uses it, as a disk would; values are encoded like on disk."""

    def __init__(self) -> None:
        self._values: dict[tuple[Table, str], bytes] = {}
        self.transactions: list[Operations] = []

    async def load(self) -> list[Record]:
        return [
            decode_record(table, self._values[table, key]) for table, key in sorted(self._values)
        ]

    async def _commit(self, operations: Operations) -> None:
        for operation in operations:
            key = (operation.record.table, operation.record.key)
            if isinstance(operation, Put):
                self._values[key] = encode_record(operation.record)
            else:
                self._values.pop(key, None)
        self.transactions.append(tuple(operations))

    async def close(self) -> None:
        pass


class SqliteStore(Store):
    """One table per record class: `key TEXT PRIMARY KEY, value BLOB`."""

    def __init__(self, runtime: Runtime, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._executor = runtime.executor("placement-store", 1)
        self._turn = asyncio.Lock()
        self._waiting: list[tuple[Operations, asyncio.Future[None]]] = []

    @classmethod
    async def open(cls, runtime: Runtime, path: str) -> SqliteStore:
        """FormatError when a newer version wrote it, LockedError when another process has it."""
        executor = runtime.executor("placement-store-open", 1)
        try:
            connection = await executor.run(open_database, path)
        finally:
            executor.close()
        return cls(runtime, connection)

    async def load(self) -> list[Record]:
        return await self._executor.run(_load, self._connection)

    async def _commit(self, operations: Operations) -> None:
        """Group commit: whoever gets its turn writes everything that waits, with one sync."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((operations, done))
        async with self._turn:
            if not done.done():
                await self._write_waiting()
        await done

    async def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, []
        try:
            await self._executor.run(
                _write, self._connection, [o for operations, _ in batch for o in operations]
            )
        except StorageError as error:
            for _, done in batch:
                done.set_exception(error)
        else:
            for _, done in batch:
                done.set_result(None)

    async def close(self) -> None:
        async with self._turn:
            await self._executor.run(self._connection.close)
            self._executor.close()


def schema_version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def open_database(
    path: str,
    *,
    migrations: Mapping[int, Migration] = MIGRATIONS,
    current: int = SCHEMA_VERSION,
) -> sqlite3.Connection:
    """Exclusively, and in the current version: an older file is migrated, all the way or not."""
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, timeout=1.0, cached_statements=64
    )
    try:
        # Held until close: two placement managers on one file would both give out the next id.
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("BEGIN IMMEDIATE")
        _migrate(connection, migrations, current)
        for table in Table:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {table} (key TEXT PRIMARY KEY, value BLOB NOT NULL)"
                " WITHOUT ROWID"
            )
        connection.execute(f"PRAGMA user_version={current}")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        connection.close()
        raise _translate(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _migrate(
    connection: sqlite3.Connection, migrations: Mapping[int, Migration], current: int
) -> None:
    version = schema_version(connection)
    if version > current:
        raise FormatError(
            f"the placement manager's metadata has version {version}, this program knows up to "
            f"{current}: install the release that wrote it, or a newer one"
        )
    for number in range(version, current) if version else ():  # 0: a new file
        step = migrations.get(number)
        if step is None:
            raise FormatError(
                f"version {number} of the placement manager's metadata can no longer be read: "
                "open it once with an earlier release"
            )
        step(connection)


def _load(connection: sqlite3.Connection) -> list[Record]:
    try:
        return [
            decode_record(table, value)
            for table in Table
            for (value,) in connection.execute(f"SELECT value FROM {table} ORDER BY key")
        ]
    except sqlite3.Error as error:
        raise _translate(error, "load") from error
    except msgspec.MsgspecError as error:
        raise CorruptionError("unreadable placement record") from error


def _write(connection: sqlite3.Connection, operations: Sequence[Operation]) -> None:
    try:
        connection.execute("BEGIN IMMEDIATE")
        for operation in operations:
            record = operation.record
            if isinstance(operation, Put):
                connection.execute(
                    f"INSERT OR REPLACE INTO {record.table} VALUES (?, ?)",
                    (record.key, encode_record(record)),
                )
            else:
                connection.execute(f"DELETE FROM {record.table} WHERE key = ?", (record.key,))
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.rollback()
        raise _translate(error, "commit") from error


def _translate(error: sqlite3.Error, what: str) -> StorageError:
    code = getattr(error, "sqlite_errorname", "") or ""
    if code.startswith("SQLITE_FULL"):
        return DiskFullError("placement store", at=what)
    if code.startswith("SQLITE_BUSY"):
        return LockedError("another process has the placement store", at=what)
    if code.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return CorruptionError("placement store damaged", at=what)
    return StorageError(f"placement store: {error}", at=what)
