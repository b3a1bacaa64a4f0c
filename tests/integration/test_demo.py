"""The demonstration itself, smaller: everything real, a kill in the middle, and its own check."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli.demo.check import check


@pytest.mark.parametrize("rate", [1500, pytest.param(1_000_000, marks=pytest.mark.soak)])
@pytest.mark.timeout(600)
def test_the_demonstration_holds(tmp_path: Path, rate: int) -> None:
    """Also if all orders are processed before the kill, as on a slow machine."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "headrace.cli.main",
            "demo",
            "--events",
            "9000",
            "--rate",
            str(rate),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "160", "NO_COLOR": "1"},
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"lost 0 · duplicated 0 · late 0", done.stdout)
    detected = re.search(r"detected (\d+\.\d+) s → first batch again \d+\.\d s", done.stdout)
    assert detected is not None, done.stdout
    assert float(detected.group(1)) < 5
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


ORDER = b'{"order_id": "o-1", "sku": "tea", "qty": 2, "price": 1.5, "at": "2026-01-01T12:00:03Z"}'
RESULT = (
    b'{"window": {"start": "2026-01-01T12:00:00Z", "end": "2026-01-01T12:00:10Z"},'
    b' "category": "drinks", "orders": 1, "revenue": 3.0}'
)


def test_the_check_can_fail() -> None:
    assert check([ORDER], [RESULT], 0).holds
    assert check([ORDER], [], 0).lost == 1
    assert check([ORDER, ORDER], [RESULT], 0).lost == 1, "a wrong total is a lost result"
    assert check([ORDER], [RESULT, RESULT], 0).duplicated == 1
    assert not check([ORDER], [RESULT, RESULT], 0).holds
    assert check([], [RESULT], 0).lost == 1, "an invented result counts"
    assert not check([], [], 0).holds, "nothing proves nothing"
