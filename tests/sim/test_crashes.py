"""What a crash ends, and what outlives it."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from headrace.errors import LockedError, UnavailableError
from headrace.runtime import Connection
from tests.simulator.runtime import Crashed, PowerCut, Simulation

pytestmark = pytest.mark.parametrize("seed", range(5))


async def echo(connection: Connection) -> None:
    while data := await connection.receive():
        connection.write([data])
        await connection.drain()


def test_a_crash_ends_the_tasks_of_its_host_and_no_others(seed: int) -> None:
    simulation = Simulation(seed)
    beats: dict[str, int] = {"n1": 0, "n2": 0, "child": 0}

    async def beat(name: str) -> None:
        clock = simulation.runtime("n1" if name == "child" else name).clock
        while True:
            beats[name] += 1
            await clock.sleep(1)

    async def parent() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(beat("child"))  # inherits the host
            await beat("n1")

    async def main() -> None:
        first = simulation.start("n1", parent())
        second = simulation.start("n2", beat("n2"))
        await asyncio.sleep(10.5)
        simulation.crash("n1")
        await asyncio.sleep(10)
        assert first.cancelled()
        assert not second.done()

    simulation.run(main())
    assert beats == {"n1": 11, "child": 11, "n2": 21}


def test_clean_up_code_of_a_dead_task_reaches_nothing(seed: int) -> None:
    simulation = Simulation(seed)
    refused: list[str] = []

    async def stubborn() -> None:
        runtime = simulation.runtime("n1")
        executor = runtime.executor("disk", 1)
        connection = await runtime.transport.connect("n2", 1)
        file = runtime.disk.open("/a", create=True)
        try:
            await asyncio.Event().wait()
        finally:
            connection.write([b"last words"])
            attempts: dict[str, Callable[[], object]] = {
                "disk": lambda: runtime.disk.write_atomic("/marker", b"clean stop"),
                "file": lambda: file.pwrite([b"x"], 0),
            }
            for name, attempt in attempts.items():
                with contextlib.suppress(Crashed):
                    attempt()
                    continue
                refused.append(name)
            doors = {
                "executor": executor.run(runtime.disk.write_atomic, "/marker", b""),
                "sleep": runtime.clock.sleep(1),
                "connect": runtime.transport.connect("n2", 1),
                "receive": connection.receive(),
                "drain": connection.drain(),
            }
            for name, door in doors.items():
                with contextlib.suppress(Crashed):
                    await door
                    continue
                refused.append(name)

    async def main() -> None:
        received: list[bytes] = []

        async def collect(connection: Connection) -> None:
            while data := await connection.receive():
                received.append(data)

        await simulation.runtime("n2").transport.listen("0.0.0.0", 1, collect)
        task = simulation.start("n1", stubborn())
        await asyncio.sleep(1)
        simulation.crash("n1")
        await asyncio.sleep(1)
        assert task.cancelled()
        assert received == []
        assert not simulation.runtime("n1").disk.exists("/marker")

    simulation.run(main())
    assert refused == ["disk", "file", "executor", "sleep", "connect", "receive", "drain"]


def test_the_other_side_of_a_connection_breaks(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        runtime = simulation.runtime("n1")
        await simulation.on("n1", runtime.transport.listen("0.0.0.0", 1, echo))
        client = simulation.runtime("client").transport
        connection = await client.connect("n1", 1)
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(1)
        simulation.crash("n1")
        with pytest.raises(UnavailableError):
            await waiting
        with pytest.raises(UnavailableError):
            await connection.drain()
        with pytest.raises(UnavailableError):
            await client.connect("n1", 1)
        with pytest.raises(UnavailableError, match="runtime anew"):
            await runtime.transport.listen("0.0.0.0", 1, echo)
        # The next life takes the port again.
        again = simulation.runtime("n1").transport
        await simulation.on("n1", again.listen("0.0.0.0", 1, echo))
        connection = await client.connect("n1", 1)
        connection.write([b"x"])
        assert await connection.receive() == b"x"
        connection.close()

    simulation.run(main())


def test_functions_under_way_in_an_executor_never_finish(seed: int) -> None:
    simulation = Simulation(seed, execution=(1.0, 2.0))
    done: list[str] = []

    async def work() -> None:
        executor = simulation.runtime("n1").executor("disk", 1)
        await executor.run(done.append, "finished")

    async def main() -> None:
        task = simulation.start("n1", work())
        await asyncio.sleep(0.5)
        simulation.crash("n1")
        await asyncio.sleep(5)
        assert task.cancelled()

    simulation.run(main())
    assert done == []


def test_a_cut_in_the_midst_of_a_write_is_a_crash(seed: int) -> None:
    simulation = Simulation(seed)
    acknowledged = 0

    async def write() -> None:
        nonlocal acknowledged
        runtime = simulation.runtime("n1")
        executor = runtime.executor("disk", 1)
        file = runtime.disk.open("/a", create=True)
        runtime.disk.sync_folder("/")
        while True:
            await executor.run(file.pwrite, [b"0123456789"], acknowledged * 10)
            await executor.run(file.sync_data)
            acknowledged += 1

    async def main() -> None:
        simulation.disk("n1").cut_after(123)
        with pytest.raises(UnavailableError):
            await simulation.on("n1", write())

    simulation.run(main())
    assert acknowledged == 12
    content = simulation.runtime("n1").disk.read("/a")
    assert content[:120] == b"0123456789" * 12
    assert content[120:] in (
        b"",
        b"0",
        b"01",
        b"012",
        b"\0",
        b"\0\0",
        b"\0\0\0",
        b"0\0",
        b"0\0\0",
        b"01\0",
    )


def test_a_killed_process_keeps_its_written_bytes(seed: int) -> None:
    simulation = Simulation(seed)

    async def write() -> None:
        disk = simulation.runtime("n1").disk
        disk.lock("/lock")
        disk.open("/a", create=True).pwrite([b"unsynced"], 0)
        await asyncio.Event().wait()

    async def main() -> None:
        simulation.start("n1", write())
        await asyncio.sleep(1)
        with pytest.raises(LockedError):
            simulation.disk("n1").lock("/lock")
        simulation.crash("n1", power_cut=False)
        simulation.disk("n1").lock("/lock")
        assert simulation.disk("n1").read("/a") == b"unsynced"

    simulation.run(main())


def test_a_crash_may_come_from_the_host_itself(seed: int) -> None:
    simulation = Simulation(seed)

    async def suicide() -> None:
        runtime = simulation.runtime("n1")
        simulation.crash("n1")
        await runtime.clock.sleep(0)
        raise AssertionError("a dead task went on")

    async def main() -> None:
        with pytest.raises(UnavailableError):
            await simulation.on("n1", suicide())

    simulation.run(main())


def test_on_hands_results_errors_and_cancellation_through(seed: int) -> None:
    simulation = Simulation(seed)
    cancelled: list[bool] = []

    async def fail() -> None:
        raise KeyError("planned")

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        assert await simulation.on("n1", asyncio.sleep(1, "result")) == "result"
        with pytest.raises(KeyError):
            await simulation.on("n1", fail())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await simulation.on("n1", hang())
        assert cancelled == [True]

    simulation.run(main())


def test_disks_and_time_go_on_from_run_to_run(seed: int) -> None:
    simulation = Simulation(seed)
    runtime = simulation.runtime("n1")

    async def first() -> None:
        file = runtime.disk.open("/a", create=True)
        file.pwrite([b"synced"], 0)
        file.sync_data()
        runtime.disk.sync_folder("/")
        file.pwrite([b"!" * 5000], 6)
        await runtime.clock.sleep(10)

    async def second() -> bytes:
        return simulation.runtime("n1").disk.read("/a")

    simulation.run(first())
    simulation.crash("n1")
    assert simulation.run(second())[:6] == b"synced"
    assert simulation.time() == 1010.0


def test_a_runtime_without_a_loop_sees_power_cuts_directly(seed: int) -> None:
    simulation = Simulation(seed)
    disk = simulation.disk("n1")
    file = disk.open("/a", create=True)
    disk.cut_after(3)
    with pytest.raises(PowerCut):
        file.pwrite([b"12345"], 0)
    with pytest.raises(PowerCut):
        file.size()
    assert simulation.trace[-1].endswith("n1 power_cut /")


def test_a_paused_host_does_nothing_and_then_catches_up(seed: int) -> None:
    simulation = Simulation(seed)
    beats: list[float] = []

    async def beat() -> None:
        clock = simulation.runtime("n1").clock
        while True:
            beats.append(simulation.time())
            await clock.sleep(1)

    async def main() -> None:
        runtime = simulation.runtime("n1")
        await simulation.on("n1", runtime.transport.listen("0.0.0.0", 1, echo))
        simulation.start("n1", beat())
        connection = await simulation.runtime("n2").transport.connect("n1", 1)
        await asyncio.sleep(5.5)
        simulation.pause("n1")
        paused = simulation.time()
        connection.write([b"queued in its kernel"])
        waiting = asyncio.ensure_future(connection.receive())
        await asyncio.sleep(20)
        assert not waiting.done()
        assert max(beats) < paused
        simulation.resume("n1")
        assert b"queued".startswith((await waiting)[:6])
        assert max(beats) == pytest.approx(paused + 20, abs=0.1)
        assert len(beats) == 7, "one beat was due, the others were never asked for"

    simulation.run(main())


def test_a_paused_host_may_crash(seed: int) -> None:
    simulation = Simulation(seed)

    async def main() -> None:
        task = simulation.start("n1", asyncio.sleep(5))
        await asyncio.sleep(1)
        simulation.pause("n1")
        await asyncio.sleep(10)
        assert not task.done()
        simulation.crash("n1")
        await asyncio.sleep(1)
        assert task.cancelled()
        assert await simulation.on("n1", asyncio.sleep(1, "next life")) == "next life"

    simulation.run(main())


def test_a_wiped_host_comes_back_with_nothing(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.disk("n1").write_atomic("/a", b"durable")
    assert simulation.disk("n1").files() == {"/a": b"durable"}
    simulation.wipe("n1")
    assert simulation.disk("n1").files() == {}
    assert simulation.disk("n1").list("/") == []
