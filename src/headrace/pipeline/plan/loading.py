"""The application that a package's entry declares.

`shop.py` and `folder/shop.py` hold one Application (or one Dag), `shop:app` names it, `plan.json`
is a plan whose functions are those of the package. An ordinary PySpark script declares none: see
`scripts.py`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError, NotFoundError
from headrace.pipeline.declare.application import Application
from headrace.pipeline.declare.dag import Dag
from headrace.pipeline.plan.logical_json import from_plan, import_function
from headrace.pipeline.plan.runs import RUN_FILE, apply_run, parse_run
from headrace.runtime.system import system_runtime


def load_application(package: str, entry: str) -> Application:
    """With what its run changes about it (`runs.py`)."""
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
    return from_plan(plan, resolve=package_function(package))


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
