"""How many connections fit beside the files of the log."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from headrace.process.limits import connections_max
from headrace.runtime.interfaces import Disk


class FakeDisk:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def open_files_max(self) -> int:
        return self.limit


def allowed(limit: int, wanted: int, *, share: float) -> int:
    disk = cast(Disk, FakeDisk(limit))
    return connections_max(disk, "iggy", wanted, files=4096, share=share)


def test_connections_leave_the_log_half_of_the_files(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = [allowed(1024, 4096, share=0.6), *(allowed(1024, 1024, share=0.2) for _ in "ab")]
    assert sum(found) + 512 + 100 <= 1024
    assert min(found) > 50
    assert "LimitNOFILE" in caplog.text


def test_where_there_are_enough_nobody_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert allowed(65_536, 4096, share=0.6) == 4096
        assert allowed(1024, 10, share=0.2) == 10
    assert caplog.text == ""
