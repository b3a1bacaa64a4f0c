"""Sample rows that containers kept: `<application path>/recordings/<id>/<window>.jsonl`."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import NotFoundError
from headrace.runtime.interfaces import Disk

FILES_MAX = 10_000  # read at a time, the newest


def read(disk: Disk, path: str, recording: str) -> list[dict[str, Any]]:
    """Blocks. NotFoundError when no container has written a window yet."""
    folder = f"{path}/{recording}"
    # Only what is there: an id with a path in it, or what is no file's name, names nothing.
    known = recording in disk.list(path)
    names = [name for name in disk.list(folder) if name.endswith(".jsonl")] if known else []
    if not names:
        raise NotFoundError("nothing is recorded (yet)", recording=recording)
    return [
        {
            "window": name.removesuffix(".jsonl"),
            "rows": [json.loads(line) for line in disk.read(f"{folder}/{name}").splitlines()],
        }
        for name in sorted(names)[-FILES_MAX:]
    ]
