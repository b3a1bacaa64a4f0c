from pathlib import Path

import pytest

from tests.unit.runtime.worlds import DISKS, WORLDS, World, make_world


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make_world(request.param, tmp_path)


@pytest.fixture(params=DISKS)
def disk_world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make_world(request.param, tmp_path)
