"""The command line uses the client and the table: they may not cost it numpy's start-up."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import headrace.client.iggy
import headrace.net.iggy_server
import headrace.wire.iggy.columns
from headrace.wire.iggy.messages.messages import PolledMessages
assert PolledMessages.decode(bytes(16)).messages() == []
print(*sorted({"numpy", "xxhash", "pyarrow"} & sys.modules.keys()))
"""


def test_numpy_is_not_imported_before_messages_are_sent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == ""
