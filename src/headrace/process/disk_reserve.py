"""Space that a data directory keeps for its own next start.

`storage.min_free_bytes` is left free for control state, but on a disk that others fill nothing is
left free. Then the reserve is given up: a start can note what it has to, readers are served, and a
topic can be deleted. It is taken again by a start that finds room for it.
"""

from __future__ import annotations

from headrace.errors import StorageError
from headrace.observability.logging import get_logger
from headrace.runtime import Disk, Runtime

RESERVE = "reserve"
RESERVE_BYTES = 16 * 1024 * 1024
_ROOM_BYTES = 8 * RESERVE_BYTES  # on a disk as small as that nobody wants it

log = get_logger(__name__)


async def keep_reserve(runtime: Runtime, data_dir: str) -> None:
    """Before anything in the data directory is opened."""
    files = runtime.executor("process", 1)
    try:
        await files.run(_keep_reserve, runtime.disk, data_dir)
    finally:
        files.close()


def _keep_reserve(disk: Disk, data_dir: str) -> None:
    path = f"{data_dir}/{RESERVE}"
    try:
        disk.make_folder(data_dir)
        free = disk.free_bytes(data_dir)
        if not disk.exists(path):
            if free >= _ROOM_BYTES:
                _take(disk, path)
        elif free < RESERVE_BYTES:
            disk.remove(path)
            log.warning("the disk is full; started with the reserve", path=path, bytes=free)
    except StorageError as error:  # whoever needs the space says what it is for
        log.warning("no disk space is reserved", path=path, error=str(error))


def _take(disk: Disk, path: str) -> None:
    file = disk.open(path, create=True)
    try:
        file.allocate(0, RESERVE_BYTES)
    finally:
        file.close()
