"""Virtual time, and what cannot go on."""

import asyncio
import gc
import logging

import pytest

from tests.simulator.runtime import DeadlockError, Simulation


def test_time_jumps_to_the_next_timer() -> None:
    simulation = Simulation(1)
    clock = simulation.runtime("n1").clock

    async def main() -> tuple[float, int]:
        before, wall_before = clock.monotonic(), clock.time_ns()
        await clock.sleep(86_000.0)
        return clock.monotonic() - before, clock.time_ns() - wall_before

    assert simulation.run(main()) == (86_000.0, 86_000 * 10**9)


def test_timers_fire_in_the_order_of_their_times() -> None:
    async def note(number: int, seconds: float, noted: list[int]) -> None:
        await asyncio.sleep(seconds)
        noted.append(number)

    async def main() -> list[int]:
        noted: list[int] = []
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(note(number, (number * 37 % 100) / 10, noted))
        return noted

    assert Simulation(1).run(main()) == sorted(range(100), key=lambda number: number * 37 % 100)


def test_wall_clocks_may_disagree() -> None:
    simulation = Simulation(1)
    first, second = simulation.runtime("n1").clock, simulation.runtime("n2").clock
    assert first.time_ns() == second.time_ns()
    simulation.skew_ns["n2"] = -5_000_000_000
    assert first.time_ns() - second.time_ns() == 5_000_000_000
    assert first.monotonic() == second.monotonic()


def test_a_deadlock_is_an_error_that_says_who_waits_where() -> None:
    simulation = Simulation(1)

    async def wait_for_a_lock(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        await simulation.on("n1", wait_for_a_lock(asyncio.Event()))

    with pytest.raises(DeadlockError, match=r"n1 task-\d+ in .*wait_for_a_lock:\d+ > Event.wait"):
        simulation.run(main())


def test_not_being_done_in_time_is_an_error() -> None:
    simulation = Simulation(1)
    clock = simulation.runtime("n1").clock

    async def main() -> None:
        while True:
            await clock.sleep(1)

    with pytest.raises(DeadlockError, match="not done"):
        simulation.run(main(), seconds_max=100)
    assert simulation.time() == pytest.approx(1101, abs=1)


def test_a_busy_loop_is_an_error() -> None:
    async def main() -> None:
        clock = Simulation(1).runtime("n1").clock
        while True:
            await clock.sleep(0)

    with pytest.raises(DeadlockError, match="busy loop"):
        Simulation(1).run(main())


def test_what_still_runs_at_the_end_is_cancelled() -> None:
    simulation = Simulation(1)
    ended: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            await asyncio.sleep(1)
            ended.append("cleaned up")

    async def main() -> str:
        simulation.start("n1", background())
        await asyncio.sleep(1)
        return "done"

    assert simulation.run(main()) == "done"
    assert ended == ["cleaned up"]
    assert gc.isenabled()


def test_an_error_of_main_comes_out() -> None:
    async def main() -> None:
        raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        Simulation(1).run(main())


def test_errors_nobody_looks_at_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def fail() -> None:
        raise KeyError("planned")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(1)
        del task

    with caplog.at_level(logging.ERROR):
        Simulation(1).run(main())
        gc.collect()
    assert "planned" in caplog.text


def test_threads_and_processes_are_refused() -> None:
    simulation = Simulation(1)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="not simulated"):
            await asyncio.to_thread(print)
        with pytest.raises(NotImplementedError, match="not simulated: sh"):
            await simulation.runtime("n1").processes.spawn(
                ["sh"], environment={}, folder="/", output="/out"
            )

    simulation.run(main())


def test_asyncio_accepts_simulated_tasks_and_futures() -> None:
    """Every primitive that waits, because each is implemented against C tasks and futures."""

    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock, semaphore, condition = asyncio.Lock(), asyncio.Semaphore(1), asyncio.Condition()

        async def produce() -> None:
            for number in range(5):
                async with lock, semaphore:
                    await queue.put(number)
            async with condition:
                condition.notify_all()

        async def consume() -> list[int]:
            return [await queue.get() for _ in range(5)]

        async def wait() -> None:
            async with condition:
                await condition.wait()

        waiting = asyncio.create_task(wait(), name="waiting")
        assert waiting.get_name() == "waiting"
        results = await asyncio.gather(consume(), produce())
        assert results[0] == [0, 1, 2, 3, 4]
        await asyncio.wait_for(waiting, 1)
        done, pending = await asyncio.wait(
            [asyncio.create_task(asyncio.sleep(n)) for n in (1, 2)],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert (len(done), len(pending)) == (1, 1)
        assert await asyncio.shield(asyncio.sleep(1, "shielded")) == "shielded"
        finished = [await each for each in asyncio.as_completed([asyncio.sleep(1, 7)])]
        assert finished == [7]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 1)

    Simulation(1).run(main())
