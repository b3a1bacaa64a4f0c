"""The Python on docs/pipelines.md, run top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_guide_is_right(spark: SparkSession) -> None:
    text = PAGE.read_text()
    names: dict[str, Any] = {"spark": spark, "__name__": "guide"}
    blocks = list(BLOCK.finditer(text))
    assert len(blocks) > 8
    for block in blocks:
        line = text[: block.start()].count("\n") + 1
        exec(compile("\n" * line + block.group(1), str(PAGE), "exec"), names)
    names["on_commit"](1)
    assert names["stored"] == {1: [200]}
