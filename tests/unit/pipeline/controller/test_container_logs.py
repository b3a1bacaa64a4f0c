"""Lines out of the log files of containers."""

from __future__ import annotations

import pytest

from headrace.errors import NotFoundError
from headrace.pipeline.controller.container_launches import (
    AROUND_BYTES,
    last_lines_of,
    lines_before,
)
from headrace.runtime.interfaces import Disk
from tests.simulator.disk import SimulatedDisk
from tests.simulator.random import SimulatedRandom

LOGS = "/data/applications/shop/logs"


def disk_with(text: str) -> Disk:
    disk = SimulatedDisk(SimulatedRandom(1))
    disk.make_folder(LOGS)
    disk.write_atomic(f"{LOGS}/shop.1.2.log", text.encode())
    return disk


def test_the_last_lines_of_one_container() -> None:
    disk = disk_with("one\ntwo\nthree\n")
    assert last_lines_of(disk, LOGS, "shop.1.2", 2, bytes_max=100) == "two\nthree\n"
    assert last_lines_of(disk, LOGS, "shop.1.2", 9, bytes_max=6) == "three\n"


@pytest.mark.parametrize("name", ["shop.1.3", "../logs/shop.1.2", "", "shop.1.2.log"])
def test_only_logs_that_are_there_are_read(name: str) -> None:
    with pytest.raises(NotFoundError):
        last_lines_of(disk_with("x\n"), LOGS, name, 2, bytes_max=100)
    with pytest.raises(NotFoundError):
        lines_before(disk_with("x\n"), LOGS, name, 1)


def test_lines_up_to_a_place() -> None:
    disk = disk_with("one\ntwo\nthree\n")
    assert lines_before(disk, LOGS, "shop.1.2", 8) == "one\ntwo\n"
    assert lines_before(disk, LOGS, "shop.1.2", 10**9) == "one\ntwo\nthree\n"
    assert lines_before(disk, LOGS, "shop.1.2", -5) == ""


def test_of_a_long_log_whole_lines_are_shown() -> None:
    text = "".join(f"line {number:05}\n" for number in range(2_000))
    shown = lines_before(disk_with(text), LOGS, "shop.1.2", len(text)).splitlines()
    assert shown[-1] == "line 01999"
    assert shown[0].startswith("line ")
    assert len(shown) <= AROUND_BYTES // 11 + 1
