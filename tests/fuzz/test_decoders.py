"""Every decoder under a coverage-guided fuzzer: a moment each in soak runs."""

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 60
TARGETS = (
    "iggy_requests",
    "iggy_requests_c",
    "iggy_batches_c",
    "iggy_replies",
    "iggy_messages",
    "sbp_stream",
    "sbp_headers",
    "sbp_batches",
    "umbilical_messages",
    "umbilical_frames",
    "umbilical_login",
    "peer_links",
)


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_garbage_gives_a_value_or_one_typed_error(target: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.decoders", target, str(SECONDS), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=SECONDS * 5,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
