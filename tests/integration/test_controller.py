"""The controller with real child processes, files and sockets."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.config.controller import ControllerSettings
from headrace.errors import DeadlineError, InvalidArgumentError
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.controller.launcher import LaunchRequest, LocalLauncher
from headrace.pipeline.controller.views import ContainerView
from headrace.pipeline.plan.packages import PackageSpec
from headrace.pipeline.plan.resources import Resources
from headrace.runtime.system import system_runtime
from tests.unit.pipeline.controller.test_controller import MemoryLog

SCRIPT = b"""
from headrace.pipeline.declare.application import Application

app = Application("shop")
app.topic("orders", "shop/orders")

@app.operator(to="shop/revenue")
def revenue(orders):
    return orders
"""


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[[], Any]]:
    made: list[Controller] = []
    log = MemoryLog()

    async def make_one() -> Controller:
        runtime = system_runtime()
        path = os.pathsep.join(filter(None, (str(Path.cwd()), os.environ.get("PYTHONPATH"))))
        launcher = LocalLauncher(
            runtime,
            broker="127.0.0.1:1",
            environment={"PATH": os.environ["PATH"], "PYTHONPATH": path},
            reach={"HEADRACE_TLS": "false"},
            command=(sys.executable, "-m", "tests.integration.fake_container"),
        )
        controller = Controller(
            runtime,
            ControllerSettings(describe_timeout_ms=60_000),
            data_dir=str(tmp_path),
            open_log=log.open,
            launcher=launcher,
            secret=b"the cluster's",
        )
        await controller.start()
        made.append(controller)
        return controller

    yield make_one
    for controller in made:
        await controller.close()


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen"
        await asyncio.sleep(0.01)
    return time.monotonic() - started


def container(controller: Controller) -> ContainerView:
    return controller.operations.show("shop").containers[0]


def active(controller: Controller) -> bool:
    return bool(
        all(one.state == "ACTIVE" for one in controller.operations.show("shop").operators)
        and container(controller).state == "ACTIVE"
    )


async def test_a_container_killed_by_sigkill_is_noticed_and_restarted(make: Any) -> None:
    controller = await make()
    await controller.operations.submit(PackageSpec("shop.py", {"shop.py": SCRIPT}))
    await until(lambda: active(controller))
    pid = container(controller).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    noticed = await until(lambda: container(controller).state == "KILLED")
    assert noticed < 5.0, "sooner than by a missing heartbeat"
    back = await until(lambda: active(controller))
    print(f"noticed after {noticed * 1000:.0f} ms, running again after {back:.2f} s")
    assert container(controller).pid != pid
    assert controller.operations.show("shop").restarts == 1
    (stopped,) = [
        one for one in controller.operations.events("shop") if one.type is EventType.STOP_CONTAINER
    ]
    assert stopped.data["exit_status"] == -signal.SIGKILL
    assert "container shop.1.2 runs shop.py" in await controller.operations.logs("shop", 10)
    await controller.operations.stop("shop")
    assert (await controller.operations.wait("shop")).state == "STOPPED"


async def test_a_new_controller_runs_the_submitted_package_again(make: Any, tmp_path: Path) -> None:
    first = await make()
    shown = await first.operations.submit(PackageSpec("shop.py", {"shop.py": SCRIPT}))
    await until(lambda: active(first))
    await first.close()
    second = await make()
    await until(lambda: active(second))
    assert second.operations.show("shop").package == shown.package
    assert container(second).id == "shop.1.2"
    folder = tmp_path / "applications" / "shop" / "packages" / shown.package
    assert sorted(path.name for path in folder.iterdir()) == [".manifest", "shop.py"]


async def test_a_container_outlives_its_controller_and_is_adopted(make: Any) -> None:
    first = await make()
    await first.operations.submit(PackageSpec("shop.py", {"shop.py": SCRIPT}))
    await until(lambda: active(first))
    before = container(first)
    # As after kill -9 of the controller: nobody ends its containers.
    first._applications.get("shop").processes.clear()
    await first.close()
    second = await make()
    await until(lambda: active(second))
    after = container(second)
    assert (after.pid, after.id, after.restarts) == (before.pid, before.id, 0)
    events = second.operations.events("shop")
    assert [one.type for one in events[:2]] == [EventType.SUBMIT, EventType.START_CONTAINER]
    assert [one.id for one in events] == list(range(1, len(events) + 1))

    # It is no child of this controller, and yet its end is noticed at once.
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    assert await until(lambda: container(second).state == "KILLED") < 5.0
    await until(lambda: active(second))
    assert container(second).pid != before.pid


async def test_a_container_that_ended_meanwhile_is_replaced_at_once(make: Any) -> None:
    first = await make()
    await first.operations.submit(PackageSpec("shop.py", {"shop.py": SCRIPT}))
    await until(lambda: active(first))
    process = first._applications.get("shop").processes.pop(container(first).id)
    await first.close()
    process.kill()
    await process.wait()
    second = await make()
    assert container(second).id == "shop.1.2"
    await until(lambda: active(second))


async def test_a_script_states_its_plan_in_a_process_of_its_own(make: Any) -> None:
    controller = await make()
    shown = await controller.operations.submit(PackageSpec("shop.py", {"shop.py": SCRIPT}))
    assert [one.name for one in shown.operators] == ["orders", "revenue"]
    assert shown.operators[1].function == "shop:revenue"


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (b"1 / 0\n", r"ZeroDivisionError: division by zero \(shop.py:1\)"),
        (b"x = 1\n", "declares no Application"),
        (b"import os\nos._exit(3)\n", "exit status 3"),
    ],
    ids=["raises", "no application", "exits"],
)
async def test_a_script_without_a_plan_is_refused_in_its_own_words(
    make: Any, script: bytes, text: str
) -> None:
    controller = await make()
    with pytest.raises(InvalidArgumentError, match=text):
        await controller.operations.submit(PackageSpec("shop.py", {"shop.py": script}))
    assert controller.operations.list() == []


async def test_a_script_that_does_not_come_back_is_ended(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_bytes(b"import time\ntime.sleep(600)\n")
    launcher = LocalLauncher(
        system_runtime(), broker="127.0.0.1:1", environment={"PATH": os.environ["PATH"]}
    )
    started = time.monotonic()
    with pytest.raises(DeadlineError):
        await launcher.describe(str(tmp_path), "shop.py", work_folder=str(tmp_path), timeout=2.0)
    assert time.monotonic() - started < 10


async def test_the_containers_environment(tmp_path: Path) -> None:
    """The login reaches containers and never the process that only states a plan."""
    launcher = LocalLauncher(
        system_runtime(),
        broker="127.0.0.1:8090",
        environment={"PATH": os.environ["PATH"]},
        reach={"HEADRACE_TLS": "hidden"},
    )
    assert "hidden" not in repr(launcher)
    (tmp_path / "shop.py").write_bytes(b"import os\nraise KeyError(sorted(os.environ))\n")
    with pytest.raises(InvalidArgumentError) as caught:
        await launcher.describe(str(tmp_path), "shop.py", work_folder=str(tmp_path), timeout=60.0)
    assert "HEADRACE_BROKER" in str(caught.value)
    assert "HEADRACE_TLS" not in str(caught.value)


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        (
            "local",
            {
                "HEADRACE_SPARK_MASTER": "local[3]",
                "HEADRACE_WORKER_MEMORY_MB": "300",
                "spark.driver.memory": "700m",
                "spark.python.daemon.module": "headrace.spark.limited_daemon",
            },
        ),
        (
            "spark://host:7077",
            {
                "HEADRACE_SPARK_MASTER": "spark://host:7077",
                "HEADRACE_WORKER_MEMORY_MB": "300",
                "spark.driver.memory": "700m",
                "spark.cores.max": "3",
                "spark.executorEnv.HEADRACE_TLS": "true",
                "spark.executorEnv.HEADRACE_WORKER_MEMORY_MB": "300",
                "spark.python.daemon.module": "headrace.spark.limited_daemon",
            },
        ),
        (
            "yarn",
            {
                "HEADRACE_SPARK_MASTER": "yarn",
                "spark.driver.memory": "700m",
                "spark.cores.max": "3",
                "spark.executorEnv.HEADRACE_TLS": "true",
            },
        ),
    ],
    ids=["local", "standalone", "yarn"],
)
async def test_where_spark_runs(master: str, expected: dict[str, str], tmp_path: Path) -> None:
    launcher = LocalLauncher(
        system_runtime(),
        broker="127.0.0.1:1",
        environment={"PATH": os.environ["PATH"]},
        reach={"HEADRACE_TLS": "true"},
        command=(sys.executable, "-c", "import os, json; print(json.dumps(dict(os.environ)))"),
        master=master,
        spark_conf={"spark.eventLog.enabled": "false"},
    )
    (tmp_path / "logs").mkdir()
    request = LaunchRequest(
        "c.1", str(tmp_path), "/p", "p.py", False, resources=Resources(700, 300, 3)
    )
    process = await launcher.launch(request)
    assert await process.wait() == 0
    told = json.loads((tmp_path / "logs" / "c.1.log").read_text())
    found = {
        name.removeprefix("HEADRACE_SPARK_CONF_"): value
        for name, value in told.items()
        if "SPARK_CONF" in name or name in ("HEADRACE_SPARK_MASTER", "HEADRACE_WORKER_MEMORY_MB")
    }
    assert found == {**expected, "spark.eventLog.enabled": "false"}
