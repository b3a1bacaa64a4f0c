"""Small files that several machines read: under a local path, or at an fsspec address such as
`s3://bucket/apps` or `hdfs://namenode/apps`. Calls block.

An address needs the package that its scheme belongs to (s3fs, a Hadoop client, ...); fsspec itself
comes with `headrace[spark]`.
"""

from __future__ import annotations

import importlib
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
