"""The application that a package's entry declares, with what one run of it changes.

`shop.py` and `folder/shop.py` hold one Application (or one Dag), `shop:app` names it, `plan.json`
is a plan whose functions are those of the package. An ordinary PySpark script declares none: see
`scripts.py`.

A run may differ from what the file declares: by properties, and by the span of a backfill. That
travels in the package, as the file RUN_FILE beside the code: whoever loads the application sees
the same, the package's hash covers it, and a restart runs it again.

    {"name": "backfill-1", "starting": "2026-01-01", "ending": "2026-01-02",
     "properties": {"valid": {"minimum": 3}}}

A backfill is an application of its own, `<application>.<name>`, and so has its own checkpoints; it
publishes to `<topic>.<name>`, dead letters to `<topic>.dead_letter.<name>`. It reads from
`starting` to `ending` (offsets or times, one for all topics or by port), then ends.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from headrace.errors import ConfigError, HeadraceError, NotFoundError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.dag import Dag
from headrace.pipeline.declare.declarations import check_position
from headrace.pipeline.declare.graph import check_property
from headrace.pipeline.plan.logical_json import from_plan, import_function
from headrace.runtime.system import system_runtime

RUN_FILE = "headrace.run.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,49}\Z")

Position = str | dict[str, str]


class Run(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    name: Annotated[str, msgspec.Meta(max_length=50)] = ""  # of a backfill
    starting: Position | None = None
    ending: Position | None = None
    properties: dict[str, dict[str, Any]] = {}

    @property
    def backfill(self) -> bool:
        return self.starting is not None or self.ending is not None


def parse_run(data: bytes) -> Run:
    try:
        return msgspec.json.decode(data, type=Run)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{RUN_FILE} is no run: {error}") from error


def format_run(run: Run) -> bytes:
    return msgspec.json.encode(run)


def apply_run(app: Application, run: Run) -> Application:
    """The application as this run wants it. ConfigError for what it does not have."""
    if run.backfill:
        _check_backfill(app, run)
    name = f"{app.name}.{run.name}" if run.backfill else app.name
    changed = Application(
        name, trigger=app.trigger, other_topics=app.other_topics, **app.attributes
    )
    changed.streams, changed.hooks = dict(app.streams), list(app.hooks)
    changed.letters_suffix = f".{run.name}" if run.backfill else ""
    for each in run.properties:
        if each not in app.stages:
            raise ConfigError(f"no operator {each}; there is {', '.join(app.stages)}")
    for stage in app.stages.values():
        given = run.properties.get(stage.name, {})
        checked = {key: check_property(app, stage.name, key, given[key]) for key in given}
        to = f"{stage.to}.{run.name}" if run.backfill and stage.to is not None else stage.to
        properties = {**stage.properties, **checked}
        changed.stages[stage.name] = replace(stage, properties=properties, to=to)
    changed.topics = dict(app.topics)
    if run.backfill:
        for port, topic in app.topics.items():
            starting = _position(run.starting, port, app)
            changed.topics[port] = replace(
                topic, starting=starting or "earliest", ending=_position(run.ending, port, app)
            )
    return changed


def _check_backfill(app: Application, run: Run) -> None:
    if not _NAME.match(run.name):
        raise ConfigError(f"a backfill needs a name of letters, digits, '_' and '-': {run.name!r}")
    for stage in app.stages.values():
        if stage.sink and not run.properties.get(stage.name):
            raise ConfigError(
                f"sink {stage.name} would write where the running pipeline writes: give it a place "
                f"of its own with --set {stage.name}.<property>=..."
            )


def _position(given: Position | None, port: str, app: Application) -> str | None:
    if isinstance(given, Mapping):
        if unknown := sorted(set(given) - set(app.topics)):
            raise ConfigError(
                f"no topic port {', '.join(unknown)}; there is {', '.join(app.topics)}"
            )
        given = given.get(port)
    if given is not None:
        check_position("a backfill's bound", given)
    return given


def load_application(package: str, entry: str) -> Application:
    """Return the application with what its run changes about it."""
    _put_on_path(package)
    app = _load_plan(package, entry) if entry.endswith(".json") else _load_module(package, entry)
    try:
        run = parse_run(system_runtime().disk.read(f"{package}/{RUN_FILE}"))
    except NotFoundError:
        return app
    return apply_run(app, run)


def _put_on_path(package: str) -> None:
    if package not in sys.path:
        sys.path.insert(0, package)
        inherited = os.environ.get("PYTHONPATH")
        # Spark's Python workers import the same code: they inherit this through the JVM.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (package, inherited)))


def _load_module(package: str, entry: str) -> Application:
    path, _, attribute = entry.partition(":")
    name = path.removesuffix(".py").strip("/").replace("/", ".")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ConfigError(f"there is no {name} in the package") from error
    if attribute:
        found = [getattr(module, attribute, None)]
    else:
        found = [each for each in vars(module).values() if isinstance(each, Application)]
        found = found or [each for each in vars(module).values() if isinstance(each, Dag)]
    if not found:
        raise ConfigError(f'{name} declares no Application; write app = Application("{name}")')
    if len(found) > 1:
        raise ConfigError(f"{name} declares {len(found)} Applications; name one: {name}:app")
    if isinstance(found[0], Dag):
        return found[0].application()
    if not isinstance(found[0], Application):
        raise ConfigError(f"{name}:{attribute} is no Application")
    return found[0]


def _load_plan(package: str, entry: str) -> Application:
    try:
        plan = json.loads(system_runtime().disk.read(f"{package}/{entry}"))
    except NotFoundError as error:
        raise ConfigError(f"there is no {entry} in the package") from error
    except ValueError as error:
        raise ConfigError(f"{entry} is no JSON: {error}") from error
    return from_plan(Application, plan, resolve=package_function(package))


def package_function(package: str) -> Callable[[str], Callable[..., Any]]:
    """Finds functions of the package's own modules: a plan names no other code."""
    root = os.path.realpath(package)

    def find(reference: str) -> Callable[..., Any]:
        module = reference.partition(":")[0]
        stem = os.path.join(root, *module.split("."))
        if not any(map(os.path.isfile, (f"{stem}.py", os.path.join(stem, "__init__.py")))):
            raise ConfigError(f"{reference}: the package has no module {module}")
        function = import_function(reference)
        loaded = os.path.realpath(getattr(sys.modules[module], "__file__", None) or "")
        if not loaded.startswith(root + os.sep):
            raise ConfigError(f"{reference} was loaded from outside the package")
        return function

    return find


def write_answer(output: str, entry: str, make: Callable[[], dict[str, Any]]) -> None:
    """Write what `make` gives to a file as JSON, or {"error": text} for what goes wrong in it."""
    try:
        text = json.dumps(make())
    except HeadraceError as error:
        text = json.dumps({"error": str(error)})
    except Exception as error:  # the user's code: whatever it raises is for its author to read
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        text = json.dumps({"error": f"{entry}: {type(error).__name__}: {error} ({place})"})
    system_runtime().disk.write_atomic(output, text.encode())
