"""headrace pipeline dry-run|plan|validate and headrace spark-conf: what a pipeline would run as.

The file's code runs in a process of its own, as it would when it is submitted; no server is asked.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from headrace.cli.declare import argument, command, json_option, option
from headrace.cli.output import print_fields, print_json, print_rows, working
from headrace.cli.pipeline import submission
from headrace.cli.pipeline.submission import check_script
from headrace.observability.escaping import note

DESCRIBE = "headrace.pipeline.plan.describe"
DESCRIBE_SECONDS = 120.0

script_argument = argument("script", type=click.Path(path_type=Path), metavar="SCRIPT.py")
master_option = option(
    "--master", default="local[*]", help="The Spark master that it would run on."
)


@script_argument
@submission.from_option
@submission.to_option
@submission.backfill_name_option
@submission.set_option
@json_option
def dry_run(
    script: Path,
    starting: tuple[str, ...],
    ending: tuple[str, ...],
    backfill_name: str,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the physical plan: containers with their operators, streams and memory."""
    from headrace.config.controller import ControllerSettings
    from headrace.pipeline.plan.logical import LogicalPlan
    from headrace.pipeline.plan.physical import make_physical_plan
    from headrace.pipeline.plan.resources import physical_view

    run = submission.make_run(starting, ending, backfill_name, settings)
    plan = _describe(script, run)
    view = physical_view(make_physical_plan(LogicalPlan.from_json(plan)), ControllerSettings())
    view["outputs"] = [
        {
            "operator": each["operator"],
            "to": each.get("topic") or each.get("store") or "a function",
            "mode": each["mode"],
            "delivery": each["delivery"],
        }
        for each in plan["outputs"]
    ]
    if as_json:
        print_json(view)
        return
    print_fields({key: view[key] for key in ("name", "window_ms", "memory_mb")}, as_json=False)
    for container in view["containers"]:
        print(
            f"\ncontainer {container['index']}: {container['memory_mb']} MB "
            f"(heap {container['heap_mb']}, Python workers {container['workers_mb']})"
        )
        columns = ("id", "name", "type", "query", "instance", "reads", "writes")
        print_rows(container["operators"], columns, as_json=False)
    print("\noutputs")
    print_rows(view["outputs"], ("operator", "to", "mode", "delivery"), as_json=False)
    if view["streams"]:
        print("\nstreams")
        print_rows(view["streams"], ("name", "source", "sinks", "locality", "fused"), as_json=False)


@script_argument
def plan(script: Path) -> None:
    """Print the logical plan as JSON; `run` takes it as a file (.json) beside its code."""
    print_json(_describe(script, submission.make_run(None, None, "", None)))


@script_argument
@master_option
@option("--application-path", help="Where checkpoints would be.")
@json_option
def validate(script: Path, master: str, application_path: str | None, as_json: bool) -> None:
    """Build every operator on empty streams and report what is wrong; starts Spark for it."""
    environment = {"HEADRACE_SPARK_MASTER": master}
    if application_path is not None:
        environment["HEADRACE_APPLICATION_PATH"] = application_path
    check_script(script)
    run = submission.make_run(None, None, "", None)
    with working(f"building every operator of {script} on Spark"):
        found = _describe(script, run, "--validate", environment=environment)
    rows = [{"stream": name, "schema": schema} for name, schema in found["schemas"].items()]
    print_rows(rows, ("stream", "schema"), as_json=as_json)
    note(f"{script} has no problems")


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Why a process ended that said nothing: of a traceback its last line, which is the reason."""
    said = [line for line in done.stderr.splitlines() if line.strip()]
    if any("No module named 'pyspark'" in line for line in said):
        return "pipelines need Spark: pip install 'headrace[spark]'"
    if done.returncode < 0:
        return f"it was ended by signal {-done.returncode}"
    how = f"it ended by itself with status {done.returncode}"
    return f"{how}: {said[-1].strip()[:500]}" if said else how


def _describe(
    script: Path, run: Any, *flags: str, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """What the package of a script says about itself. ConfigError in its own words."""
    from headrace.errors import ConfigError

    package = submission.add_run(submission.read_package(script), run)
    with tempfile.TemporaryDirectory(prefix="headrace-plan-") as folder:
        code = Path(folder, "package")
        for name, data in package["files"].items():
            path = code / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(data))
        output = Path(folder, "plan.json")
        inherited = os.environ.get("PYTHONPATH", "")
        try:
            done = subprocess.run(
                [sys.executable, "-m", DESCRIBE, str(output), *flags],
                env={
                    **os.environ,
                    **(environment or {}),
                    "HEADRACE_PACKAGE": str(code),
                    "HEADRACE_ENTRY": package["entry"],
                    "PYTHONPATH": f"{code}:{inherited}" if inherited else str(code),
                },
                capture_output=True,
                text=True,
                errors="replace",
                timeout=DESCRIBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ConfigError(
                f"{script} was not done within {DESCRIBE_SECONDS:g} s; does it start something "
                "when it is imported?"
            ) from error
        if not output.exists():
            raise ConfigError(f"{script} could not be loaded: {_last_words(done)}")
        found: dict[str, Any] = json.loads(output.read_text())
    if "error" in found:
        raise ConfigError(found["error"])
    return found


@command("spark-conf")
@option("--arguments", is_flag=True, help="Print --conf arguments of spark-submit.")
@option("--environment", is_flag=True, help="Print exports for a shell: which Java and Python.")
@json_option
def spark_conf(arguments: bool, environment: bool, as_json: bool) -> None:
    """Print the Spark settings that pipelines run with, as lines of a spark-defaults.conf."""
    from headrace.errors import ConfigError
    from headrace.spark.session import session

    if arguments and environment:
        raise ConfigError("--arguments and --environment are two ways to print; choose one")
    if as_json:
        print_json(session.environment() if environment else dict(session.RECOMMENDED))
    elif environment:
        print(session.format_environment())
    elif arguments:
        print(session.format_arguments())
    else:
        print(session.format_properties())
