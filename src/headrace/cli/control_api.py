"""The control plane's JSON API: calls to the server that the options of a command chose."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from headrace.cli.connection import TARGET, client_tls
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.http_call import Answer
    from headrace.pipeline.controller.views import ApplicationView

SUBMIT_SECONDS = 60.0
_NO_WINDOW = "f" * 16


def control_api(http: str | None = None) -> Api:
    """The API of the control plane that the options chose, or of the one at `http`."""
    target = TARGET.get()
    return Api(http or target.http, target.username, target.password)


def pipeline_api(http: str | None = None) -> PipelineApi:
    target = TARGET.get()
    return PipelineApi(http or target.http, target.username, target.password)


@dataclass(frozen=True, slots=True)
class PipelineRow:
    """A pipeline of the list. None is what the server does not say, as of a plan it cannot read."""

    name: str
    state: str
    rows: int | None = None
    rows_per_second: float | None = None
    lag: int | None = None
    window: str | None = None
    committed_window: str | None = None
    rows_late: int | None = None
    rows_bad: int | None = None
    restarts: int | None = None
    last_error: str | None = None

    @classmethod
    def from_json(cls, answer: dict[str, Any]) -> PipelineRow:
        """A server of another release may say more, or less."""
        told: dict[str, Any] = {one.name: answer.get(one.name) for one in fields(cls)}
        return cls(**told)


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
        return null_unknown_windows(self._ask("GET", path, seconds=seconds).json())

    def pipelines(self, *, seconds: float = SUBMIT_SECONDS) -> list[PipelineRow]:
        return [PipelineRow.from_json(one) for one in self.get("/pipelines", seconds=seconds)]

    def application(self, name: str) -> tuple[ApplicationView, dict[str, Any]]:
        """What the controller tells of a pipeline, and the same as `--json` prints it."""
        from headrace.pipeline.controller.views import read_view

        answer = self._ask("GET", f"/pipelines/{name}").json()
        return read_view(answer), null_unknown_windows(answer)

    def text(self, path: str) -> str:
        return self._ask("GET", path).text

    def post(self, path: str, body: object = None, *, seconds: float = SUBMIT_SECONDS) -> Any:
        return null_unknown_windows(self._ask("POST", path, body, seconds).json())

    def delete(self, path: str) -> None:
        self._ask("DELETE", path)

    def _ask(
        self, method: str, path: str, body: object = None, seconds: float = SUBMIT_SECONDS
    ) -> Answer:
        from headrace.cli.http_call import find_token, given_token
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


def null_unknown_windows(value: Any) -> Any:
    """An answer in which the id that stands for no window is null, as everything unknown is."""
    if isinstance(value, dict):
        return {name: null_unknown_windows(each) for name, each in value.items()}
    if isinstance(value, list):
        return [null_unknown_windows(each) for each in value]
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
