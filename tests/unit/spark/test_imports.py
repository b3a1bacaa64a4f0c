"""What Spark's Python workers import costs each of them, before they read their first row."""

from __future__ import annotations

import subprocess
import sys


def modules_after(code: str) -> set[str]:
    code = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_a_task_that_reads_imports_no_client_of_the_broker() -> None:
    found = modules_after("import headrace.spark.source.source")
    assert "headrace.sbp_client.client" in found
    spared = (
        "headrace.client.iggy",
        "headrace.wire.iggy.messages",
        "headrace.spark.source.following",
    )
    heavy = ("structlog", "rich", "numpy", "headrace.pipeline", "headrace.broker")
    assert not [name for name in found if name.startswith((*spared, *heavy))]
