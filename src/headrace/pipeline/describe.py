"""Writes the plan of a package's application: `python -m headrace.pipeline.describe FILE`.

A process of its own, because it runs the package's code. What goes wrong in that code is told in
its own words, as {"error": text}.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from headrace.errors import HeadraceError
from headrace.pipeline.workload import load_application
from headrace.runtime.system import system_runtime


def main(output: str) -> int:
    package, entry = os.environ["HEADRACE_PACKAGE"], os.environ["HEADRACE_ENTRY"]
    try:
        plan = load_application(package, entry).plan()
        text = json.dumps(plan)
    except HeadraceError as error:
        text = json.dumps({"error": str(error)})
    except Exception as error:  # the user's code: whatever it raises is for its author to read
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(last.filename)}:{last.lineno}"
        text = json.dumps({"error": f"{entry}: {type(error).__name__}: {error} ({place})"})
    system_runtime().disk.write_atomic(output, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
