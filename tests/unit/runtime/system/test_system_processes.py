"""Child processes: noticed at once, ended with their group, never orphaned."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import uvloop

from headrace.errors import NotFoundError
from headrace.runtime import Process
from headrace.runtime.interfaces import UNKNOWN_EXIT
from headrace.runtime.system import run, system_runtime
from headrace.runtime.system.processes import SystemProcesses, _is_leader_with

ENVIRONMENT = {"PATH": os.defpath}


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop_factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    factory: Callable[[], asyncio.AbstractEventLoop] = request.param
    return factory


async def shell(script: str, folder: Path) -> Process:
    return await SystemProcesses().spawn(
        ["sh", "-c", script], environment=ENVIRONMENT, folder=str(folder), output=f"{folder}/out"
    )


def is_running(pid: int) -> bool:
    """Not gone, and not a zombie that only waits for its parent to ask."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def command_of(process: Process) -> str:
    return Path(f"/proc/{process.pid}/comm").read_text().strip()


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def test_output_is_appended_and_the_status_returned(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("before\n")

    async def main() -> None:
        script = "pwd; echo to stderr >&2; read line; until [ -e go ]; do sleep 0.01; done; exit 3"
        process = await shell(script, tmp_path)
        before = process.exit_status
        (tmp_path / "go").touch()
        statuses = [before, await process.wait(), process.exit_status]
        assert [*statuses, await process.wait()] == [None, 3, 3, 3]

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())
    assert (tmp_path / "out").read_text() == f"before\n{tmp_path}\nto stderr\n"


def test_exit_is_noticed_at_once(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def main() -> float:
        process = await shell("exec sleep 100", tmp_path)
        waiting = asyncio.ensure_future(process.wait())
        wait_until(lambda: command_of(process) == "sleep")
        before = time.monotonic()
        os.kill(process.pid, signal.SIGKILL)
        assert await waiting == -signal.SIGKILL
        return time.monotonic() - before

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        assert median(runner.run(main()) for _ in range(5)) < 0.2


def test_terminate_and_kill_reach_the_whole_group(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    async def start() -> tuple[Process, int]:
        (tmp_path / "out").write_text("")
        process = await shell("sleep 100 & echo $!; wait", tmp_path)
        wait_until(lambda: (tmp_path / "out").read_text().endswith("\n"))
        return process, int((tmp_path / "out").read_text())

    async def main() -> None:
        for end, number in (("terminate", signal.SIGTERM), ("kill", signal.SIGKILL)):
            process, grandchild = await start()
            assert is_running(grandchild)
            getattr(process, end)()
            assert await process.wait() == -number
            wait_until(lambda pid=grandchild: not is_running(pid))  # type: ignore[misc]  # lambda
            process.terminate()
            process.kill()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_what_a_child_leaves_in_its_group_ends_with_it(tmp_path: Path) -> None:
    async def main() -> int:
        process = await shell("sleep 100 & echo $!; exit 0", tmp_path)
        assert await process.wait() == 0
        return int((tmp_path / "out").read_text())

    grandchild = run(main())
    wait_until(lambda: not is_running(grandchild))


def test_a_cancelled_wait_can_be_repeated(tmp_path: Path) -> None:
    async def main() -> None:
        process = await shell("exec sleep 100", tmp_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await process.wait()
        process.kill()
        assert await process.wait() == -signal.SIGKILL

    run(main())


def test_an_unknown_program_is_not_found(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(NotFoundError):
            await SystemProcesses().spawn(
                ["no-such-program"],
                environment=ENVIRONMENT,
                folder=str(tmp_path),
                output=f"{tmp_path}/out",
            )
        with pytest.raises(NotFoundError):
            await SystemProcesses().spawn(
                ["sh"], environment=ENVIRONMENT, folder=f"{tmp_path}/absent", output="/dev/null"
            )

    run(main())


def test_the_environment_is_the_given_one(tmp_path: Path) -> None:
    async def main() -> None:
        process = await SystemProcesses().spawn(
            ["env"],
            environment={"PATH": os.defpath, "ONLY": "this"},
            folder=str(tmp_path),
            output=f"{tmp_path}/out",
        )
        await process.wait()

    run(main())
    assert sorted((tmp_path / "out").read_text().splitlines()) == [
        "ONLY=this",
        f"PATH={os.defpath}",
    ]


PARENT = """
import asyncio, sys, threading
from headrace.runtime.system import run, system_runtime

async def main():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    process = await system_runtime().processes.spawn(
        ["sleep", "100"], environment={"PATH": sys.argv[2]}, folder=sys.argv[1],
        output=sys.argv[1] + "/out")
    print(process.pid, flush=True)
    await process.wait()

run(main())
"""


def test_the_child_dies_with_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), os.defpath]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
        parent.kill()
        parent.wait()
    wait_until(lambda: not is_running(child))


def test_only_the_main_thread_may_spawn(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def in_thread() -> None:
        try:
            asyncio.run(shell("exit 0", tmp_path))
        except AssertionError as error:
            caught.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_run_uses_uvloop_and_returns_the_result() -> None:
    async def main() -> type:
        assert await system_runtime().executor("x", 1).run(int) == 0
        return type(asyncio.get_running_loop())

    assert run(main()) is uvloop.Loop


OUTLIVED = """
import asyncio, sys
from headrace.runtime.system import run
from headrace.runtime.system.processes import SystemProcesses

async def main():
    child = await SystemProcesses().spawn(
        [sys.executable, "-c", sys.argv[3]],
        environment={"PATH": "/usr/bin:/bin", "MARK": sys.argv[2]},
        folder=sys.argv[1],
        output=f"{sys.argv[1]}/out",
        outlives=True,
    )
    print(child.pid, flush=True)
    await child.wait()

run(main())
"""


CHILD = """
import os, sys, time
below = os.fork()
if below == 0:
    os.setpgid(0, 0)  # as PySpark's workers do: a group of its own, the same environment
else:
    print(below, flush=True)
time.sleep(600)
"""


def test_a_child_that_outlives_its_parent_is_adopted(
    loop_factory: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    mark = str(tmp_path)
    parent = subprocess.Popen(
        [sys.executable, "-c", OUTLIVED, str(tmp_path), mark, CHILD], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_until(lambda: (tmp_path / "out").read_text().endswith("\n"))
    below = int((tmp_path / "out").read_text())
    wait_until(lambda: os.getpgid(below) == below)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert not _is_leader_with(below, {f"MARK={mark}".encode()})

    async def main() -> None:
        processes = SystemProcesses()
        assert await processes.adopt({"MARK": "of somebody else"}) is None
        adopted = await processes.adopt({"MARK": mark})
        assert adopted is not None
        assert (adopted.pid, adopted.exit_status) == (pid, None)
        os.kill(pid, signal.SIGSTOP)
        adopted.kill()
        assert await asyncio.wait_for(adopted.wait(), 5) == UNKNOWN_EXIT
        assert adopted.exit_status == UNKNOWN_EXIT
        assert await processes.adopt({"MARK": mark}) is None
        os.kill(below, signal.SIGKILL)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_the_machine_has_memory() -> None:
    assert SystemProcesses().memory_bytes() > 64 << 20


def test_processor_time_is_that_of_all_that_was_started(tmp_path: Path) -> None:
    """The child's own child burns it: as a container's Python starts a JVM that starts workers."""
    burn = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    processes = SystemProcesses()
    before = processes.cpu_ns()
    subprocess.run([sys.executable, "-c", program], check=True)
    used = processes.cpu_ns() - before
    assert 0.4e9 <= used < 5e9
    assert processes.cpu_ns() >= before + used  # what ended is not forgotten
