"""headrace pipeline run|list|show|stop|logs, and what the modules `pipeline_*` add"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import pipeline_deploy, pipeline_plan, pipeline_runs
from headrace.cli.broker import client_tls
from headrace.cli.options import (
    HTTP,
    PASSWORD,
    USERNAME,
    AsJson,
    Http,
    Password,
    Username,
    takes_tls,
)
from headrace.cli.output import format_value, note, print_fields, print_json, print_rows

if TYPE_CHECKING:
    import httpx

app = typer.Typer(
    help="Pipelines: PySpark code that the controller supervises.", no_args_is_help=True
)
app.command("deploy")(pipeline_deploy.deploy)
app.command("diff")(pipeline_deploy.diff)

Name = Annotated[str, typer.Argument(metavar="NAME")]
COLUMNS = ("name", "state", "rows", "rows_per_second", "lag", "window", "restarts")
SUBMIT_SECONDS = 60.0
FOLLOW_SECONDS = 0.5
ENDED = ("FINISHED", "FAILED", "STOPPED")
# What a project folder holds besides code; never part of a package.
SKIPPED_FOLDERS = {".git", ".venv", "__pycache__", "node_modules", "headrace-data"}
PACKAGE_FILE_BYTES_MAX = 4 << 20

app.command("dry-run")(pipeline_plan.dry_run)
app.command("plan")(pipeline_plan.plan)
app.command("validate")(pipeline_plan.validate)


class Api:
    """The control plane's JSON API."""

    def __init__(self, address: str, username: str, password: str) -> None:
        self._tls = client_tls()
        self._base = f"{'http' if self._tls is None else 'https'}://{address}/api"
        self._auth = (username, password)

    def get(self, path: str) -> Any:
        return self._ask("GET", path).json()

    def text(self, path: str) -> str:
        return self._ask("GET", path).text

    def post(self, path: str, body: object = None, *, seconds: float = SUBMIT_SECONDS) -> Any:
        return self._ask("POST", path, body, seconds).json()

    def _ask(
        self, method: str, path: str, body: object = None, seconds: float = SUBMIT_SECONDS
    ) -> httpx.Response:
        import httpx

        from headrace.errors import (
            AlreadyExistsError,
            NotFoundError,
            RequestError,
            UnauthenticatedError,
            UnauthorizedError,
            UnavailableError,
        )

        tls = self._tls
        extensions = {"sni_hostname": tls.server_name} if tls and tls.server_name else {}
        try:
            with httpx.Client(
                verify=True if tls is None else tls.context,
                trust_env=False,  # a proxy has no business between us and our own server
            ) as client:
                answer = client.request(
                    method,
                    f"{self._base}{path}",
                    auth=self._auth,
                    json=body,
                    timeout=seconds,
                    extensions=extensions,
                )
        except httpx.HTTPError as error:
            raise UnavailableError(f"{self._base}: {error}") from error
        if answer.is_success:
            return answer
        try:
            text = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            text = f"HTTP {answer.status_code}"
        kind = {
            401: UnauthenticatedError,
            403: UnauthorizedError,
            404: NotFoundError,
            409: AlreadyExistsError,
            503: UnavailableError,
        }.get(answer.status_code, RequestError)
        raise kind(text)


def read_package(script: Path) -> dict[str, Any]:
    """The script and the Python files beside and below it, as the API takes them."""
    from headrace.errors import ConfigError

    if not script.is_file():
        raise ConfigError(f"there is no file {script}")
    folder = script.resolve().parent
    files = {}
    for path in [script.resolve(), *sorted(folder.rglob("*.py"))]:
        relative = path.relative_to(folder)
        if SKIPPED_FOLDERS.intersection(relative.parts) or not path.is_file():
            continue
        if path.stat().st_size > PACKAGE_FILE_BYTES_MAX:
            raise ConfigError(f"{path} is too large for a package of code")
        files[relative.as_posix()] = base64.b64encode(path.read_bytes()).decode()
    return {"entry": script.name, "files": files}


@app.command("run")
@takes_tls
def run(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT.py")],
    available_now: Annotated[
        bool, typer.Option("--available-now", help="Read what is there, then end.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return once the controller has it.")
    ] = False,
    starting: pipeline_runs.From = None,
    ending: pipeline_runs.To = None,
    backfill_name: pipeline_runs.BackfillName = "",
    settings: pipeline_runs.Set = None,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Hand a pipeline to the controller and show its progress; Ctrl-C leaves it running.

    The file declares an Application (or is a plan, .json), or it is an ordinary PySpark script.
    With --from or --to it is a backfill: an application of its own, with its own checkpoint and
    output, that ends when it has read that far.
    """
    api = Api(http, username, password)
    run_of = pipeline_runs.make_run(starting, ending, backfill_name, settings)
    package = pipeline_runs.add_run(read_package(script), run_of)
    ends = available_now or run_of.backfill
    submitted = api.post("/pipelines", {**package, "available_now": ends})
    if detach:
        print_fields({name: submitted.get(name) for name in COLUMNS}, as_json=as_json)
        return
    try:
        final = follow(api, submitted["name"])
    except KeyboardInterrupt:
        note(
            f"\n{submitted['name']} goes on; "
            f"stop it with: headrace pipeline stop {submitted['name']}"
        )
        raise typer.Exit from None
    if as_json:
        print_json(final)
    if final["state"] == "FAILED":
        raise typer.Exit(1)


def follow(api: Api, name: str) -> dict[str, Any]:
    """Print a line whenever something moved, until the pipeline ends."""
    last = ""
    while True:
        view: dict[str, Any] = api.get(f"/pipelines/{name}")
        line = (
            f"{name}: {view['state']}  rows {view['rows'] or 0:,}  "
            f"{view['rows_per_second'] or 0:,.0f} rows/s  lag {format_value(view['lag'])}  "
            f"window {view['window'] or '-'}  restarts {view['restarts']}"
        )
        if line != last:
            note(line)
            last = line
        if view["state"] in ENDED:
            if view.get("last_error"):
                note(view["last_error"])
            return view
        time.sleep(FOLLOW_SECONDS)


@app.command("list")
@takes_tls
def list_pipelines(
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """List the pipelines."""
    rows = Api(http, username, password).get("/pipelines")
    print_rows(rows, COLUMNS, as_json=as_json)


@app.command("show")
@takes_tls
def show(
    name: Name,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Show one pipeline: plan, containers, operators, checkpoints, events."""
    view = Api(http, username, password).get(f"/pipelines/{name}")
    if as_json:
        print_json(view)
        return
    plain = {k: v for k, v in view.items() if not isinstance(v, list | dict)}
    print_fields(plain, as_json=False)
    for part in ("containers", "operators", "events"):
        rows = view.get(part) or []
        if rows:
            print(f"\n{part}")
            columns = [k for k, v in rows[-1].items() if not isinstance(v, list | dict)]
            print_rows(rows[-20:], columns, as_json=False)


@app.command("stop")
@takes_tls
def stop(
    name: Name,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
) -> None:
    """Stop a pipeline; its checkpoint stays, and the next run goes on from it."""
    view = Api(http, username, password).post(f"/pipelines/{name}/stop")
    note(f"{name}: {view['state']}")


@app.command("logs")
@takes_tls
def logs(
    name: Name,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=10_000)] = 100,
    http: Http = HTTP,
    username: Username = USERNAME,
    password: Password = PASSWORD,
    as_json: AsJson = False,
) -> None:
    """Print the last lines of a pipeline's log."""
    text = Api(http, username, password).text(f"/pipelines/{name}/logs?lines={lines}")
    if as_json:
        print(json.dumps(text.splitlines()))
    else:
        print(text, end="")
