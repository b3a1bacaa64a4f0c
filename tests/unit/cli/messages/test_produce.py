"""Lines of a pipe come as they are written, and their reader never stands still."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headrace.cli.messages.produce import LINES_WAITING_MAX, Lines, open_source
from headrace.errors import ConfigError


async def test_what_is_there_is_taken_at_once() -> None:
    out, into = os.pipe()
    lines = Lines(os.fdopen(out, "rb"))
    os.write(into, b"one\ntw")
    assert await lines.take(10, 1000) == [b"one"]
    waiting = asyncio.create_task(lines.take(10, 1000))
    await asyncio.sleep(0)
    assert not waiting.done(), "half a line is none, and others go on meanwhile"
    os.write(into, b"o\r\n\n")
    found = await waiting
    while len(found) < 2:
        found += await lines.take(10, 1000)
    assert found == [b"two", b""]
    os.write(into, b"end")
    os.close(into)
    assert await lines.take(10, 1000) == [b"end"]
    assert await lines.take(10, 1000) == []


async def test_a_batch_has_its_bounds_and_nothing_is_lost(tmp_path: Path) -> None:
    count = 3 * LINES_WAITING_MAX
    (tmp_path / "in").write_text("".join(f"{n}\n" for n in range(count)))
    lines = Lines(open_source(str(tmp_path / "in")))
    found: list[bytes] = []
    while batch := await lines.take(700, 2000):
        assert len(batch) <= 700
        assert sum(map(len, batch)) < 2000 + 10
        found += batch
    assert found == [b"%d" % n for n in range(count)]


async def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        open_source(str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="Is a directory"):
        open_source(str(tmp_path))
