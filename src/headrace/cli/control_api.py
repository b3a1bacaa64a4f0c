"""The control plane's JSON API for one command: the options that say where, and the calls.

As in `broker.py`: an option wins over its environment variable, that over the profile, that over
what `headrace up --dev` serves.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import completion
from headrace.cli.connection import client_tls, resolve
from headrace.cli.options import (
    HTTP,
    PASSWORD,
    TLS,
    TLS_DEFAULTS,
    TLS_OPTIONS,
    USERNAME,
    with_options,
)
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.http_call import Answer

SUBMIT_SECONDS = 60.0
_NO_WINDOW = "f" * 16

Pipeline = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.pipelines)]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a command goes, and as whom."""

    http: str = HTTP
    username: str = USERNAME
    password: str = PASSWORD


TARGET: ContextVar[Target] = ContextVar("http target", default=Target())  # noqa: B039  # frozen

OPTIONS: dict[str, Any] = {
    "http": Annotated[
        str | None,
        typer.Option(
            "--http", envvar="HEADRACE_HTTP", help=f"The control plane's HTTP port. [{HTTP}]"
        ),
    ],
    "username": Annotated[str | None, typer.Option("--username", envvar="HEADRACE_USERNAME")],
    "password": Annotated[str | None, typer.Option("--password", envvar="HEADRACE_PASSWORD")],
    "profile": Annotated[
        str | None,
        typer.Option(
            "--profile",
            help="Of `headrace profile`, not the current one.",
            autocompletion=completion.profiles,
        ),
    ],
    **TLS_OPTIONS,
}
DEFAULTS: dict[str, Any] = {
    "http": None, "username": None, "password": None, "profile": None, **TLS_DEFAULTS,
}  # fmt: skip


def controls(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options that say which control plane; `control_api` looks at them."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        given = {name: arguments.pop(name) for name in OPTIONS}
        target, tls = _target(given)
        tokens = TARGET.set(target), TLS.set(tls)
        try:
            command(**arguments)
        finally:
            TARGET.reset(tokens[0])
            TLS.reset(tokens[1])

    return with_options(run, command, OPTIONS, DEFAULTS)


def _target(given: dict[str, Any]) -> tuple[Target, Any]:
    found, tls = resolve({"address": None, "token": None, **given})
    return Target(str(given["http"] or found.http), found.username, found.password), tls


def control_api() -> Api:
    target = TARGET.get()
    return Api(target.http, target.username, target.password)


def pipeline_api() -> PipelineApi:
    target = TARGET.get()
    return PipelineApi(target.http, target.username, target.password)


class Api:
    """The control plane's JSON API."""

    def __init__(self, address: str, username: str, password: str) -> None:
        self._tls = client_tls()
        bare = address.removeprefix("https://").removeprefix("http://").rstrip("/")
        if self._tls is None and address.startswith("https://"):
            raise ConfigError(f"{address}: add --tls, and --tls-ca for a certificate of your own")
        self._server = f"{'http' if self._tls is None else 'https'}://{bare}"
        self._base = f"{self._server}/api/v1"
        self._auth = (username, password)

    def get(self, path: str, *, seconds: float = SUBMIT_SECONDS) -> Any:
        return told_windows(self._ask("GET", path, seconds=seconds).json())

    def text(self, path: str) -> str:
        return self._ask("GET", path).text

    def post(self, path: str, body: object = None, *, seconds: float = SUBMIT_SECONDS) -> Any:
        return told_windows(self._ask("POST", path, body, seconds).json())

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def _ask(
        self, method: str, path: str, body: object = None, seconds: float = SUBMIT_SECONDS
    ) -> Answer:
        from headrace.cli.http_token import find_token, given_token
        from headrace.web.server.statuses import error_of

        answer = self._call(method, path, body, seconds, given_token())
        said = {} if answer.is_good else _said(answer)
        token = find_token(self._base, said["token_file"]) if "token_file" in said else ""
        if token:
            answer = self._call(method, path, body, seconds, token)
            said = {} if answer.is_good else _said(answer)
        if answer.is_good:
            return answer
        nothing = f"HTTP {answer.status} and nothing else; perhaps it is not the dashboard"
        raise error_of(answer.status, str(said.get("error", f"{self._server}: {nothing}")))

    def _call(self, method: str, path: str, body: object, seconds: float, token: str) -> Answer:
        from headrace.cli.http_call import call
        from headrace.errors import UnavailableError

        url = f"{self._base}{path}"
        try:
            return call(
                method, url, user=self._auth, tls=self._tls, seconds=seconds, body=body, token=token
            )
        except UnavailableError as error:
            raise UnavailableError(f"{self._server}: {error}") from error


def told_windows(value: Any) -> Any:
    """An answer in which the id that stands for no window is null, as everything unknown is."""
    if isinstance(value, dict):
        return {name: told_windows(each) for name, each in value.items()}
    if isinstance(value, list):
        return [told_windows(each) for each in value]
    return None if value == _NO_WINDOW else value


def _said(answer: Answer) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class PipelineApi(Api):
    """What is below a pipeline's name."""

    def __init__(self, address: str, username: str, password: str) -> None:
        super().__init__(address, username, password)
        self._base = f"{self._base}/pipelines"
