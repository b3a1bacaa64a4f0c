"""Small files that several machines read, and whether a folder is one that they all see.

A file is under a local path, or at an fsspec address such as `s3://bucket/apps` or
`hdfs://namenode/apps`. An address needs the package that its scheme belongs to (s3fs, a Hadoop
client, ...); fsspec itself comes with `headrace[spark]`. `storage_problem` tells whether
checkpoints are where every machine of a Spark cluster can read and write them. Calls block.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from headrace.errors import ConfigError, NotFoundError, RemoteProtocolError, UnavailableError
from headrace.runtime.interfaces import Disk


def read_shared(disk: Disk, path: str, *, bytes_max: int) -> bytes:
    """NotFoundError when absent, RemoteProtocolError when longer, UnavailableError when the store
    does not answer."""
    if "://" in path:
        # Nothing may be cached: the file is read again because it may have changed.
        data = bytes(_store(path, "read", lambda fs, name: fs.cat_file(name, end=bytes_max + 1)))
    else:
        data = disk.read(path)
    if len(data) > bytes_max:
        raise RemoteProtocolError(f"a file longer than {bytes_max} bytes", path=path)
    return data


def write_shared(disk: Disk, path: str, data: bytes) -> None:
    """Whole or not at all, as far as the store knows such a thing; folders are made."""
    if "://" not in path:
        disk.make_folder(path.rpartition("/")[0])
        disk.write_atomic(path, data)
        return

    def write(fs: Any, name: str) -> None:
        fs.makedirs(name.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(name, data)

    _store(path, "write", write)


def _store(path: str, what: str, work: Any) -> Any:
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError:
        raise ConfigError(f"{path} needs fsspec: pip install 'headrace[spark]'") from None
    try:
        return work(*fsspec.core.url_to_fs(path))
    except FileNotFoundError:
        raise NotFoundError("no such file", path=path) from None
    except (ImportError, ValueError) as error:  # no such scheme, or its package is missing
        raise ConfigError(f"{path}: {error}") from error
    except Exception as error:  # every store has exceptions of its own, not all of them OSErrors
        raise UnavailableError(f"cannot {what} {path}: {error}") from error


_NETWORK = ("nfs", "cifs", "smb", "ceph", "glusterfs", "lustre", "gpfs", "beegfs", "9p", "fuse.")
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")


def storage_problem(master: str, path: str, mounts: str) -> str | None:
    """What is wrong with `path` for this Spark master; `mounts` is the text of /proc/mounts."""
    if is_local(master):
        return None
    scheme, colon, rest = path.partition("://")
    if colon and scheme != "file":
        return None
    kind = filesystem_of(rest if colon else path, mounts)
    if kind.startswith(_NETWORK):
        return None
    return (
        f"executors of {master} cannot see checkpoints in {path} ({kind or 'a local disk'}): use a "
        "folder on shared storage (NFS, or an address like hdfs:// or s3a://)"
    )


def is_local(master: str) -> bool:
    """Everything runs on this machine: `local[*]`, or a cluster that only it can reach."""
    if master.startswith("local"):
        return True
    return master.startswith("spark://") and master.removeprefix("spark://").startswith(_LOOPBACK)


def filesystem_of(path: str, mounts: str) -> str:
    """The type of the file system that holds `path`; the longest mount point wins."""
    best, kind = "", ""
    for point, type_ in _mount_points(mounts):
        inside = path == point or path.startswith(f"{point.rstrip('/')}/")
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


def _mount_points(mounts: str) -> Iterable[tuple[str, str]]:
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3:
            yield fields[1].replace("\\040", " "), fields[2]
