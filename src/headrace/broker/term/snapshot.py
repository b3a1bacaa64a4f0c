"""GET_SNAPSHOT_FILE: what somebody who looks for a fault wants to see, as a ZIP archive.

One text file per kind. Every part is bounded, so the archive is; it is made in a thread, one at a
time. Secrets are not in it: settings go through the same filter as log lines, and so did the lines.
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.errors import HeadraceError, InvalidArgumentError
from headrace.observability.logging import hide_secrets
from headrace.runtime.interfaces import Disk, Runtime
from headrace.wire.iggy.messages.system import SnapshotCompression as Compression
from headrace.wire.iggy.messages.system import SnapshotType as Type
from headrace.wire.iggy.refusals import FeatureUnavailableError

PART_BYTES_MAX = 2 << 20
FILES_MAX = 10_000
_MODE = 0o600 << 16

_METHODS = {
    Compression.STORED: zipfile.ZIP_STORED,
    Compression.DEFLATED: zipfile.ZIP_DEFLATED,
    Compression.BZIP2: zipfile.ZIP_BZIP2,
    Compression.LZMA: zipfile.ZIP_LZMA,
}


def _unknown() -> str:
    return "not known\n"


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """What only the program around the broker knows. The callables run in a thread."""

    data_dir: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    processes: Callable[[], str] = _unknown
    logs: Callable[[], str] = _unknown


class Snapshots:
    def __init__(self, runtime: Runtime, diagnostics: Diagnostics) -> None:
        self._runtime = runtime
        self._diagnostics = diagnostics
        self._turn = asyncio.Lock()

    async def make(
        self, compression: Compression, types: Sequence[Type], usage: Callable[[], dict[str, Any]]
    ) -> bytes:
        """`usage` gives the figures of the process; it runs in the thread too."""
        method = _METHODS.get(compression)
        if method is None:
            raise FeatureUnavailableError("no such archive can be made", method=compression.name)
        wanted = choose(types)
        async with self._turn:
            executor = self._runtime.executor("snapshot", 1)
            try:
                return await executor.run(self._archive, method, wanted, usage)
            finally:
                executor.close()

    def _archive(
        self, method: int, types: Sequence[Type], usage: Callable[[], dict[str, Any]]
    ) -> bytes:
        diagnostics = self._diagnostics
        makers: dict[Type, Callable[[], str]] = {
            Type.FILESYSTEM_OVERVIEW: lambda: overview(self._runtime.disk, diagnostics.data_dir),
            Type.PROCESS_LIST: diagnostics.processes,
            Type.RESOURCE_USAGE: lambda: _text(usage()),
            Type.TEST: lambda: "test\n",
            Type.SERVER_LOGS: diagnostics.logs,
            Type.SERVER_CONFIG: lambda: _text(
                dict(hide_secrets(None, "", dict(diagnostics.settings)))
            ),
        }
        now = datetime.fromtimestamp(self._runtime.clock.now_ms() / 1000, UTC)
        output = io.BytesIO()
        with zipfile.ZipFile(output, "w") as archive:
            for kind in types:
                entry = zipfile.ZipInfo(f"{kind.name.lower()}.txt", now.timetuple()[:6])
                entry.compress_type = method
                entry.external_attr = _MODE
                archive.writestr(entry, makers[kind]().encode()[-PART_BYTES_MAX:])
        return output.getvalue()


def choose(types: Sequence[Type]) -> list[Type]:
    """Each kind once; ALL stands alone."""
    if not types or (Type.ALL in types and len(types) > 1):
        raise InvalidArgumentError("ask for ALL alone, or for some of the others")
    if types[0] is Type.ALL:
        return [kind for kind in Type if kind is not Type.ALL]
    return list(dict.fromkeys(types))


def _text(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=2, default=str) + "\n"


def overview(disk: Disk, folder: str) -> str:
    """`bytes path` of every file, as many as fit, and their sum."""
    lines: list[str] = []
    total = 0
    for path, size in _files(disk, folder):
        if len(lines) == FILES_MAX:
            lines.append(f"... and more; only {FILES_MAX} files are listed")
            break
        lines.append(f"{size:>12} {path}")
        total += size
    lines.append(f"{total:>12} bytes in the files above")
    lines.append(f"{disk.free_bytes(folder):>12} bytes free")
    return "\n".join(lines) + "\n"


def _files(disk: Disk, folder: str) -> Iterator[tuple[str, int]]:
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            names = disk.list(path)
        except HeadraceError:  # not a folder
            yield path, _size(disk, path)
        else:
            waiting += [f"{path}/{name}" for name in reversed(names)]


def _size(disk: Disk, path: str) -> int:
    try:
        return disk.size(path)
    except HeadraceError:  # gone meanwhile
        return 0
