"""Sample rows that containers kept: `<application path>/recordings/<id>/<window>.jsonl`."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import NotFoundError
from headrace.runtime.interfaces import Disk

FILES_MAX = 10_000  # read at a time, the newest


def read(disk: Disk, folder: str) -> list[dict[str, Any]]:
    """Blocks. NotFoundError when no container has written a window yet."""
    names = [name for name in disk.list(folder) if name.endswith(".jsonl")]
    if not names:
        raise NotFoundError("nothing is recorded (yet)", recording=folder.rpartition("/")[2])
    return [
        {
            "window": name.removesuffix(".jsonl"),
            "rows": [json.loads(line) for line in disk.read(f"{folder}/{name}").splitlines()],
        }
        for name in sorted(names)[-FILES_MAX:]
    ]
