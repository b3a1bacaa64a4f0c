"""What every Clock, Random and Executor does."""

import asyncio
from collections.abc import Callable

import pytest

from headrace.errors import NotFoundError
from tests.unit.runtime.worlds import World


def test_sleep_takes_as_long_as_it_says(world: World) -> None:
    clock = world.runtime.clock

    async def main() -> tuple[float, int]:
        before, wall_before = clock.monotonic(), clock.time_ns()
        await clock.sleep(0.02)
        return clock.monotonic() - before, clock.time_ns() - wall_before

    elapsed, wall_ns = world.run(main())
    assert 0.019 <= elapsed < 60
    assert 0.019e9 <= wall_ns < 60e9


def test_wall_clock_units_agree(world: World) -> None:
    clock = world.runtime.clock
    ns, us, ms = clock.time_ns(), clock.now_us(), clock.now_ms()
    assert ns > 1_600_000_000 * 10**9
    assert abs(us - ns // 1000) < 1_000_000
    assert abs(ms - ns // 1_000_000) < 1000


def test_timeouts_follow_the_clock(world: World) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()

    world.run(main())


def test_random_stays_in_bounds(world: World) -> None:
    random = world.runtime.random
    assert {random.below(3) for _ in range(200)} == {0, 1, 2}
    assert all(0 <= random.uniform() < 1 for _ in range(100))
    assert [len(random.bytes(length)) for length in (0, 1, 33)] == [0, 1, 33]
    assert random.uuid() != random.uuid()
    assert random.uuid().version == 4


def test_executor_passes_arguments_results_and_errors(world: World) -> None:
    async def main() -> None:
        executor = world.runtime.executor("test", 2)
        assert await executor.run(int, "ff", base=16) == 255
        assert await executor.run(list) == []
        with pytest.raises(NotFoundError):
            await executor.run(world.runtime.disk.read, f"{world.folder}/absent")
        executor.close()

    world.run(main())


def test_one_thread_keeps_the_order_of_calls(world: World) -> None:
    done: list[int] = []

    async def main() -> None:
        executor = world.runtime.executor("test", 1)
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(executor.run(done.append, number))
        executor.close()

    world.run(main())
    assert done == list(range(50))


def test_several_threads_do_all_the_work(world: World) -> None:
    async def main() -> list[int]:
        executor = world.runtime.executor("test", 4)
        results = await asyncio.gather(*(executor.run(abs, -n) for n in range(100)))
        executor.close()
        return results

    assert world.run(main()) == list(range(100))


def test_close_waits_for_what_was_asked(world: World) -> None:
    done: list[int] = []

    async def main() -> None:
        executor = world.runtime.executor("test", 1)
        tasks = [asyncio.ensure_future(executor.run(done.append, n)) for n in range(5)]
        await world.runtime.clock.sleep(0)
        executor.close()
        assert done == [0, 1, 2, 3, 4]
        await asyncio.gather(*tasks)
        with pytest.raises(RuntimeError):
            await executor.run(done.append, 5)

    world.run(main())


def test_a_cancelled_call_that_has_not_begun_never_does(
    world: World, blocker: Callable[[], None]
) -> None:
    done: list[str] = []

    async def main() -> None:
        executor = world.runtime.executor("test", 1)
        first = asyncio.ensure_future(executor.run(blocker))
        second = asyncio.ensure_future(executor.run(done.append, "never"))
        third = asyncio.ensure_future(executor.run(done.append, "third"))
        await world.runtime.clock.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)
        assert second.cancelled()
        executor.close()

    world.run(main())
    assert done == ["third"]


def test_a_cancelled_call_that_goes_on_does_not_hold_up_a_free_thread() -> None:
    """With real threads: the simulated ones finish before anybody can cancel."""
    import threading

    from headrace.runtime.system import SystemExecutor

    async def main() -> None:
        executor = SystemExecutor("test", 2)
        release = threading.Event()
        first = asyncio.ensure_future(executor.run(release.wait))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        async with asyncio.timeout(5):
            assert await executor.run(abs, -1) == 1
        release.set()
        executor.close()

    asyncio.run(main())


@pytest.fixture
def blocker() -> Callable[[], None]:
    """A function that takes long enough for the loop to cancel what waits behind it."""
    import time

    return lambda: time.sleep(0.3)
