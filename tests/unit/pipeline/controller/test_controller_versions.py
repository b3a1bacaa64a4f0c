"""Deploying a version over another one, in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.errors import InvalidArgumentError
from headrace.pipeline.controller.application.events import EventType
from headrace.pipeline.controller.controller import Controller
from headrace.pipeline.plan.packages import PackageSpec, content_hash
from tests.unit.pipeline.controller.test_controller import FakeLauncher, World, simulate
from tests.unit.pipeline.plan.test_versions import shop


class VersionedFake(FakeLauncher):
    """Knows the state of both versions, as Spark would."""

    def __init__(self, world: World) -> None:
        super().__init__(world.runtime)
        self.plans: dict[bytes, dict[str, Any]] = {}
        self.states: dict[bytes, list[str]] = {}
        self.prepared: list[str] = []

    async def describe(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        return self.plans[self.runtime.disk.read(f"{package_folder}/{entry}")]

    async def shapes(
        self, package_folder: str, entry: str, *, work_folder: str, timeout: float
    ) -> dict[str, Any]:
        state = self.states[self.runtime.disk.read(f"{package_folder}/{entry}")]
        return {"revenue": {"sources": ["shop/orders"], "state": state}}

    async def prepare(
        self, files: Mapping[str, bytes], package_folder: str, folder: str, *, timeout: float
    ) -> None:
        self.prepared.append(package_folder)


def version(code: bytes) -> PackageSpec:
    return PackageSpec("shop.py", {"shop.py": code})


async def started(world: World) -> tuple[Controller, VersionedFake]:
    launcher = VersionedFake(world)
    world.launcher = launcher
    launcher.plans = {b"1": shop(), b"2": shop(), b"3": shop(topic="shop/returns")}
    launcher.states = {b"1": ["a"], b"2": ["b"], b"3": ["a"]}
    controller = await world.controller()
    await controller.operations.submit(version(b"1"))
    await world.sleep(5)
    return controller, launcher


def test_a_version_takes_over_at_a_committed_window() -> None:
    async def main(world: World) -> None:
        controller, launcher = await started(world)
        launcher.states[b"2"] = ["a"]
        assert (await controller.operations.diff(version(b"2"))).verdict == "COMPATIBLE"
        assert controller.operations.show("shop").package == content_hash({"shop.py": b"1"})
        before = launcher.committed[-1]
        shown = await controller.operations.deploy(version(b"2"))
        assert shown.state == "RUNNING"
        assert launcher.processes[0].exit_status == 0, "the old version stopped, it was not killed"
        await world.sleep(5)
        first, second = launcher.requests
        assert second.package_folder.endswith(content_hash({"shop.py": b"2"}))
        assert first.package_folder in launcher.prepared
        assert second.package_folder in launcher.prepared
        revenue = [info for info in launcher.deployed if info.name == "revenue"]
        assert [info.id for info in revenue] == [3, 3]
        assert revenue[1].checkpoint is not None
        assert revenue[1].checkpoint.window_id >= before, "it goes on where the old one ended"
        assert revenue[1].run_id > revenue[0].run_id
        await controller.close()
        controller = await world.controller()
        assert controller.operations.show("shop").package == content_hash({"shop.py": b"2"})
        await controller.close()

    simulate(main)


def test_a_version_that_would_lose_state_changes_nothing() -> None:
    async def main(world: World) -> None:
        controller, launcher = await started(world)
        (change,) = (await controller.operations.diff(version(b"2"))).operators
        assert change.verdict == "NEW_STATE"
        assert "keeps the state b" in change.reasons[0]
        with pytest.raises(InvalidArgumentError, match="--new-state revenue"):
            await controller.operations.deploy(version(b"2"))
        await world.sleep(1)
        assert controller.operations.show("shop").state == "RUNNING"
        assert launcher.processes[0].exit_status is None, "what runs was not disturbed"

        await controller.operations.deploy(version(b"2"), ["revenue"])
        await world.sleep(5)
        names = [one.context_attributes.get("CHECKPOINT_NAME") for one in launcher.deployed]
        assert names == [None, None, None, None, None, "revenue~2"]
        *_, event = [
            one for one in controller.operations.events("shop") if one.type is EventType.SUBMIT
        ]
        assert event.data["new_state"] == ["revenue"]
        await controller.close()

    simulate(main)


def test_running_an_ended_application_again_is_checked_too() -> None:
    async def main(world: World) -> None:
        controller, _ = await started(world)
        await controller.operations.stop("shop")
        await controller.operations.wait("shop")
        with pytest.raises(InvalidArgumentError, match="reads shop/returns"):
            await controller.operations.submit(version(b"3"))
        await controller.operations.submit(version(b"1"))
        await controller.close()

    simulate(main)


def test_a_first_deployment_starts_the_application() -> None:
    async def main(world: World) -> None:
        controller = await world.controller()
        package = PackageSpec("shop.py", {"shop.py": b""}, plan=shop())
        assert (await controller.operations.deploy(package)).state == "RUNNING"
        await controller.close()

    simulate(main)


def test_operators_keep_their_ids_whatever_comes_and_goes() -> None:
    async def main(world: World) -> None:
        controller, launcher = await started(world)
        launcher.plans |= {
            b"4": shop(more=("extra",)),
            b"5": shop(name="income", renamed_from="extra"),
            b"6": shop(name="income", more=("revenue",)),
        }
        launcher.states |= {b"4": ["a"], b"5": ["a"], b"6": ["a"]}

        async def ids(code: bytes) -> dict[str, int]:
            await controller.operations.deploy(version(code))
            await world.sleep(5)
            return {one.name: one.id for one in controller.operations.show("shop").operators}

        assert await ids(b"4") == {"orders": 1, "valid": 2, "revenue": 3, "extra": 4}
        assert await ids(b"5") == {"orders": 1, "valid": 2, "income": 4}
        assert (await ids(b"6"))["income"] == 4
        checkpoints = {
            info.name: info.context_attributes.get("CHECKPOINT_NAME") for info in launcher.deployed
        }
        assert checkpoints["income"] == "extra"
        assert checkpoints["revenue"] == "revenue~2", "not the one that was removed"
        await controller.close()

    simulate(main)
