"""What a container gets before it starts: a package, a log file, a token for the umbilical, a grant
for the broker, and the address of the controller.

Token and grant are files that only the user who runs the container may read. They are taken back
when the container has ended; the grant is renewed while it runs.

The functions read and remove what containers leave on disk for people: their logs
(`<application path>/logs/<container id>.log`) and the sample rows of recordings
(`<application path>/recordings/<id>/<window>.jsonl`). Each of the functions blocks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial

from headrace.config.controller import ControllerSettings
from headrace.errors import HeadraceError, NotFoundError
from headrace.net.addresses import format_address
from headrace.observability.logging import get_logger
from headrace.pipeline.container.umbilical import (
    HeartbeatUri,
    format_heartbeat_uri,
    heartbeat_uri_path,
)
from headrace.pipeline.controller.application.application import Application
from headrace.pipeline.controller.application.lifecycle import Launch
from headrace.pipeline.controller.broker_edges import Edges
from headrace.pipeline.controller.container_credentials import ContainerTokens, Grants, grant_path
from headrace.pipeline.controller.launcher import LaunchRequest, token_path
from headrace.pipeline.controller.running import ContainerProcesses, RunningApplication
from headrace.pipeline.controller.views import RecordedWindow
from headrace.pipeline.plan import packages
from headrace.pipeline.plan.resources import container_resources
from headrace.pipeline.shared_files import write_shared
from headrace.runtime.interfaces import Disk, Executor, Runtime
from headrace.wire.umbilical.tokens import format_token

LOGS_MAX = 10  # log files kept per application and container
AROUND_BYTES = 8 * 1024  # of a log, shown beside an error


def make_room_for_log(disk: Disk, folder: str, containers: int) -> None:
    """Remove the oldest logs before one more is written. Blocks."""
    disk.make_folder(folder)
    for old in log_files(disk, folder)[: -LOGS_MAX * containers + 1]:
        disk.remove(f"{folder}/{old}")


def last_lines(disk: Disk, folder: str, lines: int, *, bytes_max: int) -> str:
    """Read the last lines of all logs, the newest container's last. Blocks."""
    text = ""
    for file in reversed(log_files(disk, folder)):
        text = _tail(disk, f"{folder}/{file}", bytes_max) + text
        if text.count("\n") >= lines:
            break
    return "".join(text.splitlines(keepends=True)[-lines:])


def last_lines_of(disk: Disk, folder: str, container_id: str, lines: int, *, bytes_max: int) -> str:
    """Read the last lines of one container's log. Blocks."""
    text = _tail(disk, _file_of(disk, folder, container_id), bytes_max)
    return "".join(text.splitlines(keepends=True)[-lines:])


def lines_before(disk: Disk, folder: str, container_id: str, offset: int) -> str:
    """What a container wrote last before a place in its log, in whole lines. Blocks."""
    file = disk.open(_file_of(disk, folder, container_id))
    try:
        end = min(max(0, offset), file.size())
        start = max(0, end - AROUND_BYTES)
        text = file.pread(end - start, start).decode("utf-8", "replace")
    finally:
        file.close()
    return text.partition("\n")[2] if start else text


def _file_of(disk: Disk, folder: str, container_id: str) -> str:
    # Only what is there: an id with a path in it names nothing.
    if f"{container_id}.log" not in disk.list(folder):
        raise NotFoundError("no log of such a container", container_id=container_id)
    return f"{folder}/{container_id}.log"


def log_files(disk: Disk, folder: str) -> Sequence[str]:
    """Oldest first: a container's id ends with its run."""
    return sorted(
        (name for name in disk.list(folder) if name.endswith(".log")),
        key=lambda name: int(name.removesuffix(".log").rpartition(".")[2]),
    )


def _tail(disk: Disk, path: str, bytes_max: int) -> str:
    try:
        file = disk.open(path)
    except NotFoundError:
        return ""
    try:
        data = file.pread(bytes_max, max(0, file.size() - bytes_max))
    finally:
        file.close()
    return data.decode("utf-8", "replace")


FILES_MAX = 10_000  # read at a time, the newest


def read_recording(disk: Disk, path: str, recording: str) -> list[RecordedWindow]:
    """Blocks. NotFoundError when no container has written a window yet."""
    folder = f"{path}/{recording}"
    # Only what is there: an id with a path in it, or what is no file's name, names nothing.
    known = recording in disk.list(path)
    names = [name for name in disk.list(folder) if name.endswith(".jsonl")] if known else []
    if not names:
        raise NotFoundError("nothing is recorded (yet)", recording=recording)
    return [
        RecordedWindow(
            window=name.removesuffix(".jsonl"),
            rows=[json.loads(line) for line in disk.read(f"{folder}/{name}").splitlines()],
        )
        for name in sorted(names)[-FILES_MAX:]
    ]


log = get_logger(__name__)


class ContainerLaunches:
    def __init__(
        self,
        runtime: Runtime,
        settings: ControllerSettings,
        processes: ContainerProcesses,
        edges: Edges,
        *,
        disk: Executor,
        tokens: ContainerTokens,
        grants: Grants,
        umbilical_address: Callable[[], tuple[str, int]],
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._processes = processes
        self._edges = edges
        self._disk = disk
        self._tokens = tokens
        self._grants = grants
        self._umbilical_address = umbilical_address

    async def launch(self, running: RunningApplication, action: Launch) -> None:
        """Start a container; HeadraceError when it cannot be, and then nothing of it is left."""
        application = running.application
        request = self._request(application, action)
        self._processes.owners[action.container_id] = running
        try:
            await self._prepare(running, request)
            await self._processes.launch(running, request)
        except HeadraceError as error:
            self._processes.owners.pop(action.container_id, None)
            await self.take_back(application.path, action.container_id)
            log.error("launch_failed", container=action.container_id, reason=str(error))
            raise

    def _request(self, application: Application, action: Launch) -> LaunchRequest:
        record, container_id = application.record, action.container_id
        address = format_address(*self._umbilical_address())
        now_ms = self._runtime.clock.now_ms()
        grant = self._grants.renewed(container_id, application.plan.logical, now_ms)
        return LaunchRequest(
            container_id,
            application.path,
            f"{application.path}/packages/{record.package}",
            record.entry,
            record.available_now,
            container_resources(application.plan, action.index, self._settings),
            format_token(self._tokens.issue(container_id, address)),
            self._umbilical_path(application.path),
            grant or self._grants.held(container_id),
        )

    async def _prepare(self, running: RunningApplication, request: LaunchRequest) -> None:
        application, disk = running.application, self._runtime.disk
        package = application.record.package
        await self._disk.run(packages.verify, disk, request.package_folder, package)
        logs, count = f"{application.path}/logs", len(application.containers)
        await self._disk.run(make_room_for_log, disk, logs, count)
        if application.plan.split_streams and running.edges_made != application.plan:
            await self._edges.make(application.plan)
            running.edges_made = application.plan
        await self._disk.run(self._hand_over, request)

    def _hand_over(self, request: LaunchRequest) -> None:
        """Blocks. The container's token and grant, for the user that runs it alone."""
        disk = self._runtime.disk
        disk.make_folder(f"{request.application_path}/tokens")
        disk.write_atomic(request.token_path, request.token.encode(), mode=0o600)
        disk.write_atomic(request.grant_path, request.grant.encode(), mode=0o600)

    async def take_back(self, path: str, container_id: str) -> None:
        """Remove the token and the grant of a container that has ended."""
        self._grants.end(container_id)
        for file in (token_path(path, container_id), grant_path(path, container_id)):
            await self._disk.run(self._runtime.disk.remove, file)

    async def renew_grant(self, application: Application, container_id: str) -> str:
        """The grant that the container holds from now on. One that cannot be written now is
        written with the next tick: the old one lasts long."""
        now_ms = self._runtime.clock.now_ms()
        grant = self._grants.renewed(container_id, application.plan.logical, now_ms)
        if grant is not None:
            path = grant_path(application.path, container_id)
            write = partial(self._runtime.disk.write_atomic, path, grant.encode(), mode=0o600)
            try:
                await self._disk.run(write)
            except HeadraceError as error:
                self._grants.end(container_id)
                log.warning("grant_not_renewed", container=container_id, reason=str(error))
        return self._grants.held(container_id)

    async def publish_address(self, path: str) -> None:
        """Write where an application's containers find the controller."""
        settings = self._settings
        uri = HeartbeatUri(
            *self._umbilical_address(),
            settings.rpc_timeout_ms,
            settings.retry_delay_ms,
            settings.retry_timeout_ms,
        )
        file = heartbeat_uri_path(self._umbilical_path(path))
        data = format_heartbeat_uri(uri).encode()
        await self._disk.run(write_shared, self._runtime.disk, file, data)

    def _umbilical_path(self, path: str) -> str:
        """Under which an application's containers look for our address."""
        root = self._settings.umbilical_path.rstrip("/")
        return f"{root}/{path.rpartition('/')[2]}" if root else path
