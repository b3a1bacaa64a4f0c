"""Writes the plan of a package: `python -m headrace.pipeline.plan.describe FILE [--validate]`.

A process of its own, because it runs the package's code. What goes wrong in that code is told in
its own words, as {"error": text}. A script is not run: its text tells its queries. To validate is
to build everything on empty streams; then the answer also has the "schemas".
"""

from __future__ import annotations

import os
import sys
from typing import Any

from headrace.errors import ConfigError
from headrace.pipeline.plan.loading import load_application, write_answer
from headrace.pipeline.plan.scripts import is_script, script_plan
from headrace.runtime.system import system_runtime


def main(output: str, *flags: str) -> int:
    package, entry = os.environ["HEADRACE_PACKAGE"], os.environ["HEADRACE_ENTRY"]

    def answer() -> dict[str, Any]:
        plan = describe(package, entry)
        if "--validate" in flags:
            plan["schemas"] = _validate(package, entry)
        return plan

    write_answer(output, entry, answer)
    return 0


def describe(package: str, entry: str) -> dict[str, Any]:
    if script := script_text(package, entry):
        return script_plan(entry, script)
    return load_application(package, entry).plan()


def _validate(package: str, entry: str) -> dict[str, str]:
    if script_text(package, entry):
        raise ConfigError(f"{entry} is a script: only running it tells what it does")
    return load_application(package, entry).validate(
        master=os.environ.get("HEADRACE_SPARK_MASTER"),
        application_path=os.environ.get("HEADRACE_APPLICATION_PATH"),
    )


def script_text(package: str, entry: str) -> str:
    """The text of an entry that is an ordinary script; empty for anything else."""
    disk = system_runtime().disk
    if not entry.endswith(".py") or not disk.exists(f"{package}/{entry}"):
        return ""
    text = disk.read(f"{package}/{entry}").decode()
    return text if is_script(text) else ""


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
