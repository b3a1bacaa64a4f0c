"""The space that a data directory keeps for its own next start."""

from __future__ import annotations

import pytest

from headrace.process.limits import RESERVE, RESERVE_BYTES, keep_reserve
from headrace.runtime import Runtime
from headrace.runtime.system import system_runtime
from tests.simulator.runtime import Simulation

PATH = f"/data/{RESERVE}"


@pytest.mark.parametrize("free", [0, RESERVE_BYTES - 1])
def test_it_is_given_up_when_the_disk_is_full_and_taken_again_when_it_is_not(free: int) -> None:
    simulation = Simulation(1)
    disk = simulation.disk("host")

    async def main() -> None:
        runtime: Runtime = simulation.runtime("host")
        await keep_reserve(runtime, "/data")
        assert disk.exists(PATH)
        await keep_reserve(runtime, "/data")
        assert disk.exists(PATH), "kept while there is room"
        disk.free = free
        await keep_reserve(runtime, "/data")
        assert not disk.exists(PATH)
        disk.free = 2 * RESERVE_BYTES
        await keep_reserve(runtime, "/data")
        assert not disk.exists(PATH), "not while there is hardly room for anything else"
        disk.free = 100 * RESERVE_BYTES
        await keep_reserve(runtime, "/data")
        assert disk.exists(PATH)

    simulation.run(main())


async def test_it_takes_space_on_a_real_disk(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("data")
    await keep_reserve(system_runtime(), str(folder))
    assert (folder / RESERVE).stat().st_blocks * 512 >= RESERVE_BYTES


def test_no_start_fails_for_want_of_it() -> None:
    simulation = Simulation(1)
    disk = simulation.disk("host")

    async def main() -> None:
        disk.fail_next("allocate")
        await keep_reserve(simulation.runtime("host"), "/data")

    simulation.run(main())
