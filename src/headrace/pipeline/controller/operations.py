"""What the CLI and the JSON API may ask of the controller.

Everything that changes an application is journalled before it is answered; what a container has to
confirm is waited for, with a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from headrace.config.controller import ControllerSettings
from headrace.errors import (
    AlreadyExistsError,
    DeadlineError,
    HeadraceError,
    InvalidArgumentError,
    NotFoundError,
    TooLargeError,
)
from headrace.observability.logging import get_logger
from headrace.pipeline.controller.action_performer import ActionPerformer
from headrace.pipeline.controller.application.events import Event, EventType
from headrace.pipeline.controller.application.model import plan_of
from headrace.pipeline.controller.application_views import details, summary
from headrace.pipeline.controller.backlog import topics_read
from headrace.pipeline.controller.broker_edges import Edges
from headrace.pipeline.controller.container_launches import (
    ContainerLaunches,
    last_lines,
    last_lines_of,
    lines_before,
    read_recording,
)
from headrace.pipeline.controller.journal import ApplicationRecord, JournalWriter
from headrace.pipeline.controller.running import RunningApplication, RunningApplications
from headrace.pipeline.controller.submission import Submission, check_storage, make_record
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationSummary,
    ApplicationView,
    ControllerStatistics,
    OperatorComparison,
    RecordedWindow,
    UnreadableApplication,
    VersionComparison,
    WindowPoint,
)
from headrace.pipeline.loglevels import check_levels
from headrace.pipeline.plan import packages, versions
from headrace.pipeline.plan.logical import LogicalPlan, plan_topics
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.pipeline.plan.plan_requests import apply_requests
from headrace.pipeline.plan.resources import check_memory, needed_mb
from headrace.runtime.interfaces import Executor, Runtime
from headrace.wire.umbilical import messages as m
from headrace.wire.umbilical.windows import parse_window

log = get_logger(__name__)

# `list` is a method of the class below
Recorded: TypeAlias = list[RecordedWindow]
Happened: TypeAlias = list[Event]

PROPERTY_SECONDS = 5.0  # for a container to confirm
STACK_TRACE_SECONDS = 10.0
RECORDING_WINDOWS_MAX = 10_000
GLANCE_EVENTS = 100


class Operations:
    """All that people and programs may ask. Submissions go one at a time."""

    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        applications: RunningApplications,
        performer: ActionPerformer,
        launches: ContainerLaunches,
        submission: Submission,
        edges: Edges,
        *,
        journal: JournalWriter,
        disk: Executor,
        now_ms: Callable[[], int],
        umbilical_statistics: Callable[[], dict[str, int]],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._applications = applications
        self._performer = performer
        self._launches = launches
        self._submission = submission
        self._edges = edges
        self._journal = journal
        self._disk = disk
        self._now_ms = now_ms
        self._umbilical_statistics = umbilical_statistics
        self._submitting = asyncio.Lock()

    async def submit(self, package: packages.Package) -> ApplicationView:
        """Deploy a package and start its application; what `show` says of it.

        AlreadyExistsError while one of that name runs. One that ended is replaced and goes on
        from its checkpoints; InvalidArgumentError when this version cannot.
        """
        self._check_package(package)
        async with self._submitting:
            plan = await self._submission.plan_of(package)
            before = self._check_name(str(plan["name"]))
            if before is not None:
                versions.check_deployable(versions.compare(before.plan, plan), ())
            return await self._start_version(package, plan)

    async def diff(self, package: packages.Package) -> VersionComparison:
        """What deploying a package over its application would keep, operator by operator."""
        self._check_package(package)
        async with self._submitting:
            plan = await self._submission.plan_of(package)
            name = str(plan["name"])
            before = self._applications.get(name).application.record
            comparison = await self._submission.compare(
                self._applications.path(name), before, package, plan
            )
        return VersionComparison(
            name=name,
            deployed=before.package,
            package=packages.content_hash(package.files),
            verdict=comparison.verdict.name,
            state_compared=comparison.shapes_compared,
            operators=[
                OperatorComparison(
                    name=one.operator, verdict=one.verdict.name, reasons=list(one.reasons)
                )
                for one in comparison.changes
            ],
        )

    async def deploy(
        self, package: packages.Package, new_state: Collection[str] = ()
    ) -> ApplicationView:
        """Replace what an application runs, at a committed window; start it if there is none.

        The running version stops between two batches, so that everything it published is
        committed, and the new one goes on from there; operators in `new_state` begin a new
        checkpoint. InvalidArgumentError before anything stops when the versions do not fit.
        """
        self._check_package(package)
        async with self._submitting:
            plan = await self._submission.plan_of(package)
            name = str(plan["name"])
            running = self._applications.find(name)
            if running is not None:
                before = running.application.record
                comparison = await self._submission.compare(
                    self._applications.path(name), before, package, plan
                )
                versions.check_deployable(comparison, new_state)
                if not running.application.finished:
                    await self.stop(name)
                await self.wait(name)
            return await self._start_version(package, plan, new_state)

    async def _start_version(
        self, package: packages.Package, plan: dict[str, Any], new_state: Collection[str] = ()
    ) -> ApplicationView:
        hash_ = packages.content_hash(package.files)
        before = self._check_name(str(plan["name"]))
        record = make_record(package, plan, hash_, before, self._now_ms(), new_state)
        self._check_memory(record)
        self._applications.make(record)  # refuses now what could not run after a restart either
        await self._submission.install(self._applications.path(record.name), hash_, package)
        await self._journal.append("submit", msgspec.to_builtins(record))
        was = {"was": before.package, "new_state": sorted(new_state)} if before else {}
        await self._begin(record.name, EventType.SUBMIT, package=hash_, **was)
        if before is not None:
            await self._remove_positions(plan_of(before), kept=plan_of(record))
        return self.show(record.name)

    async def resume(self, name: str) -> ApplicationView:
        """Start an application that was stopped, or failed, again: the same package, from its
        checkpoints."""
        running = self._applications.get(name)
        async with self._submitting:
            if not running.application.finished or running.processes:
                raise AlreadyExistsError("the application has not ended", name=name)
            self._check_memory(running.application.record)
            await self._journal.append("resume", {"application": name})
            await self._begin(name, EventType.RESUME)
        return self.show(name)

    async def stop(self, name: str) -> None:
        """Ask an application to end; `wait` tells when it has."""
        running = self._applications.get(name)
        async with running.lock:
            await self._performer.perform(running, running.application.on_stop(self._now_ms()))

    async def remove(self, name: str) -> None:
        """Forget an application that has ended: its record, its packages, checkpoints and logs,
        and the topics between its containers. Topics of users stay. It may be repeated."""
        running = self._applications.get(name)
        async with self._submitting, running.lock:
            if not running.application.finished or running.processes:
                raise AlreadyExistsError("the application has not ended; stop it first", name=name)
            await self._edges.remove(name)
            await self._remove_positions(running.application.plan)
            await self._disk.run(self._runtime.disk.remove_tree, self._applications.path(name))
            await self._journal.append("remove", {"application": name})
            self._applications.remove(name)

    async def kill_container(self, name: str, container_id: str) -> None:
        """Kill a container's process; it is restarted."""
        running = self._applications.get(name)
        async with running.lock:
            actions = running.application.on_kill(container_id, self._now_ms())
            await self._performer.perform(running, actions)

    async def set_property(self, name: str, operator: str, values: Mapping[str, Any]) -> None:
        """Change properties of an operator, now and for good. Live ones are in force when this
        returns; for others the operator's queries are started again from where they are."""
        running = self._applications.get(name)
        async with running.lock:
            requests, actions = running.application.changes.on_property(
                operator, values, self._now_ms()
            )
            await self._performer.perform(running, actions)
        for request in requests:
            answer = await self._response(running, request)
            if isinstance(answer, str) and answer:
                raise InvalidArgumentError(answer, operator=operator)

    async def set_instances(self, name: str, operator: str, instances: int) -> None:
        """Change how many containers run a stateless operator; done when `show` says so."""
        running = self._applications.get(name)
        async with running.lock:
            actions = running.application.scaling.on_instances(operator, instances, self._now_ms())
            await self._performer.perform(running, actions)

    async def change_plan(self, name: str, requests: Sequence[Mapping[str, Any]]) -> None:
        """Change the graph by the origin's requests (`plan_requests`), all of them or none."""
        running = self._applications.get(name)
        async with running.lock:
            application = running.application
            declared = LogicalPlan.from_json(application.record.declared or application.record.plan)
            wanted = apply_requests(application.plan.logical, declared, requests)
            after = application.plan_changes.plan_with(wanted)
            await self._edges.make(after)
            running.edges_made = after
            before = application.plan
            await self._performer.perform(
                running, application.plan_changes.on_plan(after, self._now_ms())
            )
            await self._remove_positions(before, kept=after)

    async def roll_back(self, name: str, window: str, operators: Sequence[str] = ()) -> None:
        """Take operators (all, unless some are named) and what reads them back to a window."""
        running = self._applications.get(name)
        async with running.lock:
            actions = running.application.rollback.on_rollback(
                parse_window(window), self._now_ms(), operators, "asked for"
            )
            await self._performer.perform(running, actions)

    async def replay(self, name: str, topic: str, starting: str) -> None:
        """Read a topic again from `starting`: earliest, latest, JSON offsets, or a time."""
        running = self._applications.get(name)
        async with running.lock:
            actions = running.application.changes.on_replay(topic, starting, self._now_ms())
            await self._performer.perform(running, actions)

    async def start_recording(self, name: str, operator: str, windows: int = 100) -> str:
        """Keep sample rows of an operator's next windows; the recording's id."""
        if not 1 <= windows <= RECORDING_WINDOWS_MAX:
            raise InvalidArgumentError(f"windows must be 1 to {RECORDING_WINDOWS_MAX}")
        return await self._record(name, operator, windows, start=True)

    async def stop_recording(self, name: str, operator: str) -> None:
        await self._record(name, operator, 0, start=False)

    async def _record(self, name: str, operator: str, windows: int, *, start: bool) -> str:
        running = self._applications.get(name)
        async with running.lock:
            application, now_ms = running.application, self._now_ms()
            id_ = application.requests.on_recording(operator, windows, now_ms, start=start)
            await self._performer.perform(running, [])
        return id_

    async def recorded(self, name: str, recording: str) -> Recorded:
        """The rows that a recording has so far, window by window."""
        path = f"{self._applications.get(name).application.path}/recordings"
        return await self._disk.run(read_recording, self._runtime.disk, path, recording)

    async def send_request(self, name: str, request: m.StramToNodeRequest) -> None:
        """Queue an operator request; it goes out with the next heartbeat's answer."""
        self._applications.get(name).application.requests.on_request(request)

    async def stack_trace(self, name: str, container_id: str) -> str:
        """What the container's threads are doing, as JSON; DeadlineError if it does not say."""
        running = self._applications.get(name)
        container = running.application.on_stack_trace_wanted(container_id)
        try:
            async with asyncio.timeout(STACK_TRACE_SECONDS):
                while not container.stack_trace:
                    await running.beat.wait()
        except TimeoutError:
            raise DeadlineError("no stack trace came", seconds=STACK_TRACE_SECONDS) from None
        return container.stack_trace

    async def set_log_levels(self, name: str, levels: Mapping[str, str]) -> None:
        """By logger name, in every container of the application, later ones included."""
        heartbeat_details = self._applications.get(name).heartbeat_details
        heartbeat_details.on_log_levels(check_levels(levels, heartbeat_details.log_levels))

    # looking

    def log_levels(self, name: str) -> dict[str, str]:
        return dict(self._applications.get(name).heartbeat_details.log_levels)

    def list(self) -> list[ApplicationRow]:
        now_ms = self._now_ms()
        return [
            self._summary(running, now_ms)
            if (running := self._applications.find(name)) is not None
            else UnreadableApplication(
                name=name,
                package=record.package,
                entry=record.entry,
                submitted_ms=record.submitted_ms,
                last_error="its plan cannot be read by this version",
            )
            for name, record in self._journal.applications.items()
        ]

    def _summary(self, running: RunningApplication, now_ms: int) -> ApplicationSummary:
        return running.backlog.summarize(summary(running.application, now_ms), now_ms)

    def show(self, name: str) -> ApplicationView:
        running, now_ms = self._applications.get(name), self._now_ms()
        return running.annotate(details(running.application, now_ms), now_ms)

    def glance(self, name: str) -> ApplicationView:
        """What `show` says, with the newest events alone: for those who look every second."""
        running, now_ms = self._applications.get(name), self._now_ms()
        view = details(running.application, now_ms, events_max=GLANCE_EVENTS)
        return running.annotate(view, now_ms)

    def topics(self, name: str) -> tuple[str, ...]:
        """What an application reads and writes, `stream/topic`, also one that cannot be read."""
        record = self._journal.applications.get(name)
        if record is None:
            raise NotFoundError("no such application", name=name)
        return plan_topics(record.plan)

    def events(self, name: str, *, after: int = 0) -> Happened:
        return self._applications.get(name).application.events.list(after=after)

    def history(self, name: str) -> dict[int, tuple[WindowPoint, ...]]:
        """The last windows of every operator, by its id, oldest first."""
        return self._applications.get(name).heartbeat_details.history()

    async def wait(self, name: str) -> ApplicationView:
        """Until the application has ended and its processes with it; then what `show` says."""
        running = self._applications.get(name)
        await running.over.wait()
        while running.processes:
            await asyncio.wait(
                [asyncio.ensure_future(one.wait()) for one in running.processes.values()]
            )
            await self._runtime.clock.sleep(0)
        now_ms = self._now_ms()
        return running.annotate(details(running.application, now_ms), now_ms)

    async def logs(self, name: str, lines: int = 100) -> str:
        """The last lines of the application's containers, the newest container last."""
        folder = f"{self._applications.get(name).application.path}/logs"
        return await self._disk.run(
            last_lines,
            self._runtime.disk,
            folder,
            lines,
            bytes_max=self._settings.log_tail_bytes_max,
        )

    async def container_log(self, name: str, container_id: str, lines: int = 100) -> str:
        """The last lines of one container, also of one that ended; NotFoundError without any."""
        folder = f"{self._applications.get(name).application.path}/logs"
        return await self._disk.run(
            last_lines_of,
            self._runtime.disk,
            folder,
            container_id,
            lines,
            bytes_max=self._settings.log_tail_bytes_max,
        )

    async def log_before(self, name: str, container_id: str, offset: int) -> str:
        """The lines of a container's log that end at a place in it, as an error reports it."""
        folder = f"{self._applications.get(name).application.path}/logs"
        return await self._disk.run(lines_before, self._runtime.disk, folder, container_id, offset)

    def statistics(self) -> ControllerStatistics:
        running = list(self._applications)
        return ControllerStatistics(
            applications=len(self._journal.applications),
            applications_running=sum(not one.application.finished for one in running),
            containers=sum(len(one.processes) for one in running),
            umbilical=self._umbilical_statistics(),
        )

    # how they are done

    async def _begin(self, name: str, type: EventType, **data: Any) -> None:
        """Start the application of a fresh record."""
        running = self._applications.add(self._journal.applications[name])
        running.application.events.add(self._now_ms(), type, **data)
        await self._launches.publish_address(running.application.path)
        async with running.lock:
            actions = running.application.on_start(self._now_ms())
            await self._performer.perform(running, actions)

    async def _remove_positions(self, plan: PhysicalPlan, kept: PhysicalPlan | None = None) -> None:
        """Forget how far queries of a plan have read that another one, if any, has no more. What
        is not removed holds retention for as long as it may, and no longer."""
        still = topics_read(kept) if kept is not None else {}
        for port, (source, operators) in topics_read(plan).items():
            gone = operators - (still[port][1] if port in still else set())
            topic = str(source.logical.properties.get("topic", ""))
            try:
                if gone:
                    await self._edges.remove_positions(plan.logical.name, topic, gone)
            except HeadraceError as error:
                log.warning("positions_not_removed", topic=topic, reason=str(error))

    def _check_package(self, package: packages.Package) -> None:
        packages.check_files(
            package.entry, package.files, bytes_max=self._settings.package_bytes_max
        )
        check_storage(self._settings)

    def _check_name(self, name: str) -> ApplicationRecord | None:
        """The record of an application of this name that ended, if there is one."""
        running = self._applications.find(name)
        if running is not None and not running.application.finished:
            raise AlreadyExistsError("an application of this name runs", name=name)
        if running is not None and running.processes:
            raise AlreadyExistsError("its last container has not ended yet", name=name)
        before = self._journal.applications.get(name)
        if before is None and len(self._journal.applications) >= self._settings.applications_max:
            raise TooLargeError("too many applications", most=self._settings.applications_max)
        return before

    def _check_memory(self, record: ApplicationRecord) -> None:
        if self._settings.master != "local":
            return  # the cluster's manager knows what it has
        living = [one.application for one in self._applications]
        check_memory(
            plan_of(record),
            self._settings,
            machine_mb=self._runtime.processes.memory_bytes() >> 20,
            taken_mb=sum(
                needed_mb(one.plan, self._settings)
                for one in living
                if not one.finished and one.name != record.name
            ),
        )

    async def _response(self, running: RunningApplication, request: int) -> m.Value:
        responses = running.application.requests.responses
        try:
            async with asyncio.timeout(PROPERTY_SECONDS):
                while request not in responses:
                    await running.beat.wait()
        except TimeoutError:
            raise DeadlineError(
                "journalled, but no container has confirmed it yet", seconds=PROPERTY_SECONDS
            ) from None
        return responses.pop(request)
