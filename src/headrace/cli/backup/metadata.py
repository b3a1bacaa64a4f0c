"""The placement manager's SQLite file, taken while it is in use.

The manager holds the file exclusively, so SQLite itself would not let us in. Its two files are read
as bytes, and taken only if neither has changed in the meantime: the write-ahead log is appended to,
and what is torn at its end SQLite leaves out.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from headrace.errors import CorruptionError
from headrace.placement.metadata.records import RangeRecord, StreamRecord, Table, decode_record

FILE = "placement/metadata.sqlite"
SIDE_FILES = ("-wal", "-shm")
_WAL = "-wal"

Signature: TypeAlias = tuple[tuple[int, int, int], ...]


def signature(data_dir: Path) -> Signature:
    """Changes with every transaction."""
    found = []
    for name in (FILE, FILE + _WAL):
        try:
            stat = os.stat(data_dir / name)
        except FileNotFoundError:
            found.append((0, 0, 0))
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Metadata:
    database: bytes
    log: bytes

    @classmethod
    def read(cls, data_dir: Path) -> Metadata | None:
        """None where there is none: a data node or a broker of a cluster."""
        path = data_dir / FILE
        if not path.exists():
            return None
        log = Path(f"{path}{_WAL}")
        return cls(path.read_bytes(), log.read_bytes() if log.exists() else b"")

    def save(self, target: Path) -> None:
        """As one file, with everything in it."""
        path = target / FILE
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(self.database)
        Path(f"{path}{_WAL}").write_bytes(self.log)
        try:
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                (said,) = connection.execute("PRAGMA integrity_check").fetchone()
            connection.close()
        except sqlite3.Error as error:
            raise CorruptionError(f"the placement store cannot be read: {error}") from error
        if said != "ok":
            raise CorruptionError(f"the placement store is damaged: {said}")
        for suffix in SIDE_FILES:
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        path.chmod(0o600)


def records(path: Path) -> tuple[dict[int, StreamRecord], list[RangeRecord]]:
    """Of a file that nobody uses."""
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            (said,) = connection.execute("PRAGMA integrity_check").fetchone()
            if said != "ok":
                raise CorruptionError(f"the placement store is damaged: {said}")
            found = [
                decode_record(table, value)
                for table in (Table.STREAMS, Table.RANGES)
                for (value,) in connection.execute(f"SELECT value FROM {table}")
            ]
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise CorruptionError(f"the placement store cannot be read: {error}") from error
    streams = {one.stream_id: one for one in found if isinstance(one, StreamRecord)}
    return streams, [one for one in found if isinstance(one, RangeRecord)]
