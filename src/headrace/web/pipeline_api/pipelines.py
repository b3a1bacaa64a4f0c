"""Pipelines as a whole: listing, submitting, deploying, stopping and removing them.

A pipeline is submitted as the files of a project, checked before anybody writes them.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any, Protocol

import msgspec
from starlette.requests import Request

from headrace.errors import InvalidArgumentError, TooLargeError
from headrace.pipeline.controller.views import (
    ApplicationRow,
    ApplicationView,
    VersionComparison,
    to_json,
)
from headrace.web.pipeline_api.control import PIPELINE
from headrace.web.pipeline_api.rights import PipelineRights
from headrace.web.server.endpoints import Endpoint
from headrace.web.server.exchange import decode_json, read_bytes

PACKAGE_BYTES_MAX = 32 * 1024 * 1024
PACKAGE_FILES_MAX = 2_000


class SubmittedPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline as it arrives: the files of the project and which one to run."""

    entry: str
    files: dict[str, bytes]
    name: str = ""
    available_now: bool = False
    new_state: tuple[str, ...] = ()  # operators that begin a new checkpoint, when deployed over


class Submitted(Protocol):
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


def endpoints(pipelines: Submitted, rights: PipelineRights) -> list[Endpoint]:
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
