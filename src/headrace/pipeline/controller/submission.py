"""From a submitted package to a record of an application: its plan, what it needs, its ids."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Collection
from typing import Any

from headrace.config.controller import ControllerSettings
from headrace.errors import ConfigError, NotFoundError
from headrace.pipeline.controller.application.model import plan_of
from headrace.pipeline.controller.journal import ApplicationRecord
from headrace.pipeline.controller.launcher import Launcher, VersionedLauncher
from headrace.pipeline.plan import packages, versions
from headrace.pipeline.plan.deploy import checkpoint_folder
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.scripts import RUN_SCRIPT
from headrace.pipeline.plan.spark_conf import PROVIDER, SPARK_CONF, read_pinned, store_of
from headrace.pipeline.shared_files import is_local
from headrace.runtime.interfaces import Disk, Executor, Runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import WindowGrid

SHAPES = ".shapes"  # beside a package: what checkpoints of its queries hold
ENVIRONMENTS = ".environments"


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

    async def plan_of(self, package: packages.Package) -> dict[str, Any]:
        """What the package declares, in a process of its own if it has to be asked."""
        given = getattr(package, "plan", None)
        plan = dict(given) if given is not None else await self._describe(package)
        if package.name:
            plan["name"] = package.name
        LogicalPlan.from_json(plan).validate()
        return plan

    async def install(self, path: str, hash_: str, package: packages.Package) -> None:
        await self._install(f"{path}/packages/{hash_}", package)

    async def compare(
        self, path: str, before: ApplicationRecord, package: packages.Package, plan: dict[str, Any]
    ) -> versions.Comparison:
        """With the state that Spark would keep, where the launcher can ask Spark."""
        declared = versions.compare(before.plan, plan)
        launcher = self._launcher
        given = getattr(package, "plan", None) is not None
        # A script's queries are its own business: Spark refuses a checkpoint that does not fit.
        given = given or any(one.get("class") == RUN_SCRIPT for one in plan["operators"])
        if given or declared.verdict is versions.Verdict.REFUSED:
            return declared
        if not isinstance(launcher, VersionedLauncher):
            return declared
        deployed = f"{path}/packages/{before.package}"
        await self._disk.run(packages.verify, self._runtime.disk, deployed, before.package)
        async with self._staged(package) as (folder, work_folder):
            old = await self._kept_shapes(deployed)
            if old is None:
                old = await self._shapes(launcher, deployed, before.entry, work_folder)
                data = json.dumps(old).encode()
                await self._disk.run(self._runtime.disk.write_atomic, f"{deployed}{SHAPES}", data)
            new = await self._shapes(launcher, folder, package.entry, work_folder)
        bound = await self._disk.run(bound_stores, self._runtime.disk, path, before)
        old = {name: {**shape, "store": bound.get(name)} for name, shape in old.items()}
        conf = {**self._settings.spark_conf, **plan.get("attributes", {}).get(SPARK_CONF, {})}
        new = {
            name: {**shape, "store": store_of(shape["state"], conf.get(PROVIDER))}
            for name, shape in new.items()
        }
        return versions.compare(before.plan, plan, old, new)

    async def _kept_shapes(self, deployed: str) -> dict[str, Any] | None:
        """A package never changes, and so neither does what its checkpoints hold."""
        try:
            data = await self._disk.run(self._runtime.disk.read, f"{deployed}{SHAPES}")
            return dict(json.loads(data))
        except (NotFoundError, ValueError):
            return None

    async def _shapes(
        self, launcher: VersionedLauncher, folder: str, entry: str, work_folder: str
    ) -> dict[str, Any]:
        timeout = self._settings.compare_timeout_ms / 1000
        return await launcher.shapes(folder, entry, work_folder=work_folder, timeout=timeout)

    async def _describe(self, package: packages.Package) -> dict[str, Any]:
        async with self._staged(package) as (folder, work_folder):
            return await self._launcher.describe(
                folder,
                package.entry,
                work_folder=work_folder,
                timeout=self._settings.describe_timeout_ms / 1000,
            )

    @contextlib.asynccontextmanager
    async def _staged(self, package: packages.Package) -> AsyncIterator[tuple[str, str]]:
        """The package in a folder for the time being, and a folder for work beside it."""
        disk = self._runtime.disk
        work_folder = f"{self._folder}/.staging"
        await self._disk.run(disk.remove_tree, work_folder)
        folder = f"{work_folder}/{packages.content_hash(package.files)}"
        try:
            await self._install(folder, package)
            yield folder, work_folder
        finally:
            await self._disk.run(disk.remove_tree, work_folder)

    async def _install(self, folder: str, package: packages.Package) -> None:
        await self._disk.run(packages.install, self._runtime.disk, folder, package.files)
        if isinstance(self._launcher, VersionedLauncher):
            await self._launcher.prepare(
                package.files,
                folder,
                f"{self._folder}/{ENVIRONMENTS}",
                timeout=self._settings.requirements_timeout_ms / 1000,
            )


def bound_stores(disk: Disk, path: str, record: ApplicationRecord) -> dict[str, str]:
    """The state stores that checkpoints of an application are bound to, by query. Blocks."""
    names = {str(one["name"]): versions.checkpoint_name(one) for one in record.plan["operators"]}
    found = {}
    for operator in plan_of(record).operators:
        name = operator.logical.name
        folder = checkpoint_folder(operator, record.generations.get(name, 0))
        offsets = f"{path}/{folder}/{names.get(name, name)}/offsets"
        batches = [int(one) for one in disk.list(offsets) if one.isdigit()]
        if operator.query and batches:
            conf = read_pinned(disk.read(f"{offsets}/{max(batches)}"))
            if PROVIDER in conf:
                found[name] = conf[PROVIDER]
    return found


def make_record(
    package: packages.Package,
    plan: dict[str, Any],
    hash_: str,
    before: ApplicationRecord | None,
    now_ms: int,
    new_state: Collection[str] = (),
) -> ApplicationRecord:
    """Window ids, run ids and operator ids go on over an application's whole life, and so do
    checkpoints, but for the operators in `new_state`."""
    origins: dict[str, str] = {}
    if before is not None:
        origins = versions.continued(before.plan, plan)
        plan = versions.carry_over(before.plan, plan, new_state)
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
        given_out = plan_of(before).identities
        record.operator_ids = versions.rename_keys(given_out.operators, origins)
        record.container_ids = versions.rename_keys(given_out.containers, origins)
        record.generations = versions.rename_keys(before.generations, origins)
        record.rollbacks = before.rollbacks
        record.fresh = before.fresh
        record.activations = versions.rename_keys(before.activations, origins)
        begun = versions.without_checkpoint(before.plan, plan) | set(new_state)
        record.activations |= dict.fromkeys(sorted(begun), _window_at(record, now_ms))
        record.events = list(before.events)
        record.statistics = dict(before.statistics)
    return record


def _window_at(record: ApplicationRecord, now_ms: int) -> int:
    """After every window that was closed, because nothing runs: new checkpoints begin there."""
    width_ms = LogicalPlan.from_json(record.plan).attribute("STREAMING_WINDOW_SIZE_MILLIS")
    assert isinstance(width_ms, int), "a version with another width is refused"
    return int(WindowGrid(record.start_window_ms, width_ms).window_at(now_ms))


def check_storage(settings: ControllerSettings) -> None:
    """On a cluster the drivers of one application run on any node, and so must its files."""
    if not is_local(settings.master) and not settings.shared_path:
        raise ConfigError(
            f"containers run on {settings.master}: set controller.shared_path to a folder that "
            "all its nodes see, because checkpoints must outlive the node that wrote them"
        )
