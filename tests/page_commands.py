"""The commands of a page, and a shell that runs them as a reader would.

Commands stand in blocks marked `console`, each behind `$ `; one with an open quote goes on in the
next lines. All commands of a page run in one shell, one after the other. `headrace up` among them
runs as it stands there, but for its ports, which are free ones.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    found: list[str] = []
    for block in _BLOCK.findall(text):
        going_on = False
        for line in block.splitlines():
            if going_on:
                found[-1] += f"\n{line}"
            elif line.startswith("$ "):
                found.append(line[2:])
            else:
                continue
            going_on = _is_open(found[-1])
        assert not going_on, f"a quote is not closed: {found[-1]}"
    return found


def _is_open(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return True
    return False


def python_blocks(text: str) -> list[str]:
    return _PYTHON.findall(text)


PORTS = ("iggy", "http", "quic", "placement", "node")


def programs(folder: Path, ports: Sequence[int]) -> Path:
    """A folder for the PATH with the programs of this very tree."""
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    given = " ".join(f"--{name}-port {port}" for name, port in zip(PORTS, ports, strict=True))
    up = f'if [ "$1" = up ]; then shift; set -- up {given} "$@"; fi\n'
    for name, arguments, before in (
        ("headrace", "-m headrace.cli.main", up),
        ("pytest", "-m pytest", ""),
        ("python", "", ""),
    ):
        program = bin_folder / name
        run = f'exec {shlex.quote(sys.executable)} {arguments} "$@"\n'
        program.write_text(f"#!/bin/sh\n{before}{run}")
        program.chmod(0o755)
    return bin_folder


def run_commands(found: list[str], folder: Path, *, seconds: float) -> str:
    """All of them in one shell; what they printed. The first that fails is the test's failure.

    A server that they leave running, or that a failure left, is stopped.
    """
    ports = free_ports(len(PORTS))
    address = {
        "HEADRACE_ADDRESS": f"127.0.0.1:{ports[0]}",
        "HEADRACE_HTTP": f"127.0.0.1:{ports[1]}",
    }
    script = ["set -euo pipefail"]
    for number, command in enumerate(found):
        script += [f"echo {shlex.quote(f'::: {number} {command}')}", command]
    path = f"{programs(folder, ports)}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **address, "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    log = folder / "commands.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", "-c", "\n".join(script)],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            subprocess.run(["headrace", "down"], cwd=folder, env=environment, capture_output=True)
    assert code == 0, f"exit {code}, after:\n{log.read_text()}"
    return log.read_text()
