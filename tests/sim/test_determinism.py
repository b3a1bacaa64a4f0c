"""A seed names a run: the same events in the same order, in any process."""

import asyncio
import os
import subprocess
import sys

import pytest

from tests.sim import scenario
from tests.simulator.runtime import Simulation


def trace_of(seed: int, hash_seed: int, *flags: str) -> str:
    return subprocess.run(
        [sys.executable, *flags, "-m", "tests.sim.scenario", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("seed", [1, 2])
def test_the_trace_depends_on_nothing_but_the_seed(seed: int) -> None:
    first, second = trace_of(seed, 0), trace_of(seed, 1, "-X", "dev")
    assert len(first.splitlines()) > 500
    assert first == second
    # And once more here, where the heap looks quite different.
    here = scenario.run(seed)
    assert first.splitlines()[-1] == here.digest()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_seeds_repeat(seed: int) -> None:
    assert scenario.run(seed).trace == scenario.run(seed).trace


def test_seeds_differ() -> None:
    assert len({scenario.run(seed).digest() for seed in range(5)}) == 5


def test_a_task_group_cancels_in_the_same_order_each_time() -> None:
    """Real tasks hash by address, so a set of them has no order worth testing against."""

    async def wait(number: int, ended: list[int]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def fail() -> None:
        raise ValueError

    async def run_group(ended: list[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(wait(number, ended))
                padding.append([bytearray(8) for _ in range(number % 7)])
            group.create_task(fail())

    async def main(ended: list[int]) -> None:
        with pytest.raises(ExceptionGroup):
            await run_group(ended)

    padding: list[list[bytearray]] = []  # moves the heap about between tasks
    orders = []
    for _ in range(3):
        ended: list[int] = []
        Simulation(1).run(main(ended))
        orders.append(ended)
    assert sorted(orders[0]) == list(range(100))
    assert orders[0] == orders[1] == orders[2]


def test_futures_in_sets_have_an_order_too() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        names = {loop.create_future(): number for number in range(50)}
        return [names[future] for future in set(names)]

    junk: list[object] = []
    orders = []
    for count in (0, 1000, 77):
        junk.append([object() for _ in range(count)])
        orders.append(Simulation(1).run(main()))
    assert orders[0] == orders[1] == orders[2]


def test_cyclic_garbage_ends_generators_at_the_same_event() -> None:
    """The collector runs when it has counted enough allocations; the simulator does not let it."""

    async def numbers(closed: list[str]) -> object:
        try:
            yield 1
        finally:
            closed.append("closed")

    async def main(closed: list[str], allocations: int) -> list[str]:
        generator = numbers(closed)
        await anext(generator)  # type: ignore[call-overload]  # typed as object above
        cycle: list[object] = [generator]
        cycle.append(cycle)
        del generator, cycle
        [[number] for number in range(allocations)]
        await asyncio.sleep(1)
        return list(closed)

    assert Simulation(1).run(main([], 0)) == Simulation(1).run(main([], 200_000)) == []
