"""Pipelines as a whole: listing, submitting, deploying, stopping and removing them, and who may.

A pipeline is submitted as the files of a project, checked before anybody writes them.

A user sees the pipelines whose topics' messages they may read, all of them. What a pipeline shows
is made of its topics: recordings are rows of theirs, errors and logs quote them, its figures count
them. So who may read the messages of every topic that it reads or writes sees it, as does who may
manage the server (they could run such a pipeline themselves); to anybody else there is none of that
name. The topics that the controller makes between containers hold nothing but what comes of those,
and dead letters are asked of the broker as the user.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request

from headrace.errors import InvalidArgumentError, NotFoundError, TooLargeError
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationView,
    ControllerStatistics,
    VersionComparison,
    to_json,
)
from headrace.web.broker_api.catalogue import Catalogue, may
from headrace.web.metrics.pipelines import MeasuredPipelines
from headrace.web.pipeline_api.control import PIPELINE
from headrace.web.server.endpoints import Endpoint, decode_json, read_bytes
from headrace.web.server.logins import Login
from headrace.wire.iggy.commands import Permission

BASES = ("/api/v1/pipelines/{name}", "/ws/v2/stram/{name}")
"""Below these paths everything is about the pipeline that they name."""

T = TypeVar("T")


class PipelineRights:
    def __init__(self, topics_of: Callable[[str], Sequence[str]], catalogue: Catalogue) -> None:
        """`topics_of`: what an application reads and writes, `stream/topic`; NotFoundError."""
        self._topics_of = topics_of
        self._catalogue = catalogue

    def sees(self, login: Login, name: str) -> bool:
        if login.may_manage or may(login.permissions, Permission.POLL):
            return True
        try:
            topics = self._topics_of(name)
        except NotFoundError:
            return False
        return bool(topics) and all(self._may_read(login, one) for one in topics)

    def check(self, login: Login, name: str) -> None:
        """The same answer for what is not there and for what is not theirs."""
        if not self.sees(login, name):
            raise NotFoundError("no such application", name=name)

    def seen(self, login: Login, rows: Iterable[T], name: Callable[[T], str]) -> list[T]:
        return [one for one in rows if self.sees(login, name(one))]

    def seen_rows(self, login: Login, rows: Iterable[ApplicationRow]) -> list[ApplicationRow]:
        return self.seen(login, rows, lambda one: one.name)

    def guard(self, path: str) -> Callable[[Login, Request], None] | None:
        """What holds every path below a pipeline's name against this; None for other paths."""
        if not path.startswith(BASES):
            return None

        def allow(login: Login, request: Request) -> None:
            self.check(login, request.path_params["name"])

        return allow

    def may_see_topic(self, login: Login, address: str) -> bool:
        """Whether the user may see that there is such a topic."""
        return self._allowed(login, Permission.READ_TOPIC, address)

    def _may_read(self, login: Login, address: str) -> bool:
        return self._allowed(login, Permission.POLL, address)

    def _allowed(self, login: Login, action: Permission, address: str) -> bool:
        if may(login.permissions, action):
            return True
        state = self._catalogue.find(*address.split("/", 1)) if "/" in address else None
        if state is None:
            return False  # nobody knows whose it would be
        return may(login.permissions, action, state.stream.id, state.topic.id)


class VisiblePipelines:
    """The controller as `metrics` reads it, with what a user sees of it. Who may read the server's
    state sees the figures of all: they hold no row."""

    def __init__(self, pipelines: MeasuredPipelines, rights: PipelineRights, login: Login) -> None:
        self._pipelines = pipelines
        self._rights = rights
        self._login = login
        self._all = may(login.permissions, Permission.READ_SERVERS)

    def list(self) -> list[ApplicationRow]:
        rows = self._pipelines.list()
        return rows if self._all else self._rights.seen_rows(self._login, rows)

    def show(self, name: str) -> ApplicationView:
        return self._pipelines.show(name)

    def statistics(self) -> ControllerStatistics:
        allowed = self._all or self._login.may_manage
        return self._pipelines.statistics() if allowed else ControllerStatistics()


PACKAGE_BYTES_MAX = 32 * 1024 * 1024
PACKAGE_FILES_MAX = 2_000


class SubmittedPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline as it arrives: the files of the project and which one to run."""

    entry: str
    files: dict[str, bytes]
    name: str = ""
    available_now: bool = False
    new_state: tuple[str, ...] = ()  # operators that begin a new checkpoint, when deployed over


class SubmittedPipelines(Protocol):
    """What this layer needs of the controller."""

    async def submit(self, package: SubmittedPackage) -> ApplicationView: ...

    async def diff(self, package: SubmittedPackage) -> VersionComparison: ...

    async def deploy(
        self, package: SubmittedPackage, new_state: Collection[str] = ()
    ) -> ApplicationView: ...

    def list(self) -> list[ApplicationRow]: ...

    def show(self, name: str) -> ApplicationView: ...

    async def stop(self, name: str) -> None: ...

    async def remove(self, name: str) -> None: ...


def endpoints(pipelines: SubmittedPipelines, rights: PipelineRights) -> list[Endpoint]:
    async def listed(request: Request) -> list[dict[str, Any]]:
        return [to_json(one) for one in rights.seen_rows(request.state.login, pipelines.list())]

    async def show(request: Request) -> dict[str, Any]:
        return to_json(pipelines.show(request.path_params["name"]))

    async def submit(request: Request) -> dict[str, Any]:
        return to_json(await pipelines.submit(await read_package(request)))

    async def diff(request: Request) -> VersionComparison:
        return await pipelines.diff(await read_package(request))

    async def deploy(request: Request) -> dict[str, Any]:
        package = await read_package(request)
        return to_json(await pipelines.deploy(package, package.new_state))

    async def stop(request: Request) -> dict[str, Any]:
        await pipelines.stop(request.path_params["name"])
        return to_json(pipelines.show(request.path_params["name"]))

    async def remove(request: Request) -> dict[str, Any]:
        await pipelines.remove(request.path_params["name"])
        return {}

    return [
        Endpoint(
            "GET", "/api/v1/pipelines", listed, "All pipelines.", former_path="/api/pipelines"
        ),
        Endpoint(
            "POST",
            "/api/v1/pipelines",
            submit,
            "Submit a package and start its application.",
            answer=ApplicationView,
            body=SubmittedPackage,
            status=201,
            manage=True,
            runs_code=True,
            former_path="/api/pipelines",
        ),
        Endpoint(
            "POST",
            "/api/v1/deployments",
            deploy,
            "Deploy a package over its application, at a committed window; start it if there is"
            " none.",
            answer=ApplicationView,
            body=SubmittedPackage,
            status=201,
            manage=True,
            runs_code=True,
            former_path="/api/deployments",
        ),
        Endpoint(
            "POST",
            "/api/v1/deployments/diff",
            diff,
            "What deploying a package would keep.",
            body=SubmittedPackage,
            manage=True,
            runs_code=True,
            former_path="/api/deployments/diff",
        ),
        Endpoint(
            "GET",
            PIPELINE,
            show,
            "One pipeline in full.",
            answer=ApplicationView,
            former_path="/api/pipelines/{name}",
        ),
        Endpoint(
            "DELETE",
            PIPELINE,
            remove,
            "Remove a pipeline that has ended, with its checkpoints.",
            manage=True,
            former_path="/api/pipelines/{name}",
        ),
        Endpoint(
            "POST",
            f"{PIPELINE}/stop",
            stop,
            "Stop a pipeline.",
            answer=ApplicationView,
            manage=True,
            former_path="/api/pipelines/{name}/stop",
        ),
    ]


def _decode_package(body: bytes) -> SubmittedPackage:
    package = decode_json(body, SubmittedPackage, "a pipeline package")
    if len(package.files) > PACKAGE_FILES_MAX:
        raise TooLargeError(f"a package holds at most {PACKAGE_FILES_MAX} files")
    for path in (package.entry, *package.files):
        parts = PurePosixPath(path).parts
        if not parts or path.startswith("/") or ".." in parts or "\0" in path or "\\" in path:
            raise InvalidArgumentError(f"not a path inside the package: {path!r}")
    if package.entry not in package.files:
        raise InvalidArgumentError(f"the package has no file {package.entry!r}")
    return package


async def read_package(request: Request) -> SubmittedPackage:
    # A form cannot send this type, so no foreign page can submit code with a browser's login.
    if request.headers.get("content-type") != "application/json":
        raise InvalidArgumentError("send the package as application/json")
    refusal = TooLargeError(f"a package is at most {PACKAGE_BYTES_MAX} bytes")
    return _decode_package(await read_bytes(request, PACKAGE_BYTES_MAX, refusal))
