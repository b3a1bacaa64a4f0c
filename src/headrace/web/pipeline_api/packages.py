"""A pipeline as it is submitted: the files of a project, checked before anybody writes them."""

from __future__ import annotations

from pathlib import PurePosixPath

import msgspec
from starlette.requests import Request

from headrace.errors import InvalidArgumentError, TooLargeError
from headrace.web.server.exchange import decode_json

PACKAGE_BYTES_MAX = 32 * 1024 * 1024
PACKAGE_FILES_MAX = 2_000


class SubmittedPackage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pipeline as it arrives: the files of the project and which one to run."""

    entry: str
    files: dict[str, bytes]
    name: str = ""
    available_now: bool = False
    new_state: tuple[str, ...] = ()  # operators that begin a new checkpoint, when deployed over


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
    return _decode_package(await _read_body(request))


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > PACKAGE_BYTES_MAX:
            raise TooLargeError(f"a package is at most {PACKAGE_BYTES_MAX} bytes")
    return bytes(body)
