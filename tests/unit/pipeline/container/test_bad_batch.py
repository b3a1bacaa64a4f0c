"""What is said of a record that makes a batch fail."""

from __future__ import annotations

import pytest

from headrace.pipeline.container.bad_batch import FoundRecord, reason_of
from headrace.pipeline.container.bad_records import BadRecord
from headrace.pipeline.declare.bad_rows import STOPS

WORKER = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/worker.py", line 1, in main
    raise ValueError("a")
ValueError: a

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
shop.PriceError: no price for tea
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WORKER, "PriceError: no price for tea"),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==", "[DIVIDE_BY_ZERO]"),
        (f"[USER_RAISED] {STOPS}valid expects n > 0 SQLSTATE: P0001", f"{STOPS}valid expects"),
        ("", "unknown"),
    ],
)
def test_one_line_is_taken_out_of_what_spark_says(text: str, reason: str) -> None:
    assert reason_of(text).startswith(reason)
    assert "\n" not in reason_of(text)
    assert len(reason_of(text)) <= 200


def test_an_event_names_operator_window_and_record() -> None:
    found = FoundRecord(BadRecord("shop/orders", 3, 77, "ValueError: x"), "valid", "dead_letter")
    assert found.describe("19a0") == (
        "valid failed on shop/orders partition 3 offset 77 in window 19a0: ValueError: x "
        "(dead_letter)"
    )
