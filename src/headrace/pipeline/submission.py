"""From a submitted package to a record of an application: its plan, what it needs, its ids."""

from __future__ import annotations

from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.errors import ConfigError
from headrace.pipeline import packages
from headrace.pipeline.journal import ApplicationRecord
from headrace.pipeline.launcher import Launcher
from headrace.pipeline.plan import LogicalPlan
from headrace.runtime.interfaces import Executor, Runtime
from headrace.wire.umbilical import messages as m


class Submission:
    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        launcher: Launcher,
        *,
        folder: str,
        disk: Executor,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._launcher = launcher
        self._folder = folder
        self._disk = disk

    async def plan_of(self, package: packages.Package, hash_: str) -> dict[str, Any]:
        """What the package declares, in a process of its own if it has to be asked."""
        given = getattr(package, "plan", None)
        plan = dict(given) if given is not None else await self._describe(package, hash_)
        if package.name:
            plan["name"] = package.name
        LogicalPlan.from_json(plan).validate()
        return plan

    async def install(self, path: str, hash_: str, package: packages.Package) -> None:
        folder = f"{path}/packages/{hash_}"
        await self._disk.run(packages.install, self._runtime.disk, folder, package.files)

    async def _describe(self, package: packages.Package, hash_: str) -> dict[str, Any]:
        disk = self._runtime.disk
        work_folder = f"{self._folder}/.staging"
        folder = f"{work_folder}/{hash_}"
        await self._disk.run(disk.remove_tree, work_folder)
        await self._disk.run(packages.install, disk, folder, package.files)
        try:
            return await self._launcher.describe(
                folder,
                package.entry,
                work_folder=work_folder,
                timeout=self._settings.describe_timeout_ms / 1000,
            )
        finally:
            await self._disk.run(disk.remove_tree, work_folder)


def make_record(
    package: packages.Package,
    plan: dict[str, Any],
    hash_: str,
    before: ApplicationRecord | None,
    now_ms: int,
) -> ApplicationRecord:
    """Window ids, run ids and operator ids go on over an application's whole life."""
    record = ApplicationRecord(
        name=str(plan["name"]),
        plan=plan,
        declared=plan,
        package=hash_,
        entry=package.entry,
        start_window_ms=now_ms // 1000 * 1000,
        submitted_ms=now_ms,
        available_now=package.available_now,
        committed=m.NO_WINDOW,
    )
    if before is not None:
        record.start_window_ms = before.start_window_ms
        record.run, record.committed = before.run, before.committed
        record.operator_ids = dict(before.operator_ids)
        record.container_ids = dict(before.container_ids)
        record.generations = dict(before.generations)
        record.rollbacks = before.rollbacks
        record.events = list(before.events)
        record.statistics = dict(before.statistics)
    return record


def check_storage(settings: ControllerSettings) -> None:
    """On a cluster the drivers of one application run on any node, and so must its files."""
    if settings.master != "local" and not settings.shared_path:
        raise ConfigError(
            f"containers run on {settings.master}: set controller.shared_path to a folder that "
            "all its nodes see, because checkpoints must outlive the node that wrote them"
        )
