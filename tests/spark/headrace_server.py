"""Placement manager, data node and broker in a process of their own, as `headrace up` has them.

`python -m tests.spark.headrace_server DATA_DIR PORT SETTINGS` prints the broker's address and
serves until its standard input ends, so that it never outlives the test that started it. SETTINGS
is JSON, by section: {"broker": {"extensions": false}}.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from headrace.config.settings import Settings
from headrace.process.data_plane import DataPlane
from headrace.runtime.system import run, system_runtime
from tests.ports import free_port

START_SECONDS = 30.0


class HeadraceServer:
    """Started and stopped by a test; the data directory stays for the next start."""

    def __init__(self, data_dir: Path, **sections: Mapping[str, object]) -> None:
        self._data_dir = data_dir
        self._settings = json.dumps(sections)
        self.address = ""

    def restart(self) -> None:
        """At the same address."""
        self.stop()
        self.start(port=self.address.rpartition(":")[2])

    def start(self, port: str = "") -> None:
        self._log = (self._data_dir.parent / f"{self._data_dir.name}.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.spark.headrace_server"),
                *(str(self._data_dir), port or str(free_port()), self._settings),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().decode().strip()
        assert self.address, "the server did not start; see its log"

    def stop(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(START_SECONDS) == 0
        finally:
            self._process.kill()  # nothing, once it has ended
            self._process.wait()
            self._process.stdout.close()
            self._log.close()


async def _serve(data_dir: str, port: int, sections: dict[str, dict[str, object]]) -> None:
    settings = Settings(
        data_dir=data_dir, iggy_port=port, placement_port=0, node_port=0, quic_port=0, http_port=0
    )
    root = {"root_username": "iggy", "root_password": "secret"}
    sections["broker"] = {**root, **sections.get("broker", {})}
    changed = {
        name: msgspec.structs.replace(getattr(settings, name), **values)
        for name, values in sections.items()
    }
    plane = DataPlane(system_runtime(), msgspec.structs.replace(settings, **changed))
    await plane.start()
    print(plane.addresses()["iggy"], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await plane.close()


if __name__ == "__main__":
    run(_serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
