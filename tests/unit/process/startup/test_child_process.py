"""A child process ends, gets stuck or cannot be started: it comes back."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.process.startup import child_process
from headrace.process.startup.child_process import ControlChild, Restarts

SAYS_READY = 'import sys, time\nsys.stdin.readline()\nprint(\'{"http": "here"}\', flush=True)\n'
GARBLED = "print('no JSON', flush=True)"
LIVES = f"{SAYS_READY}while True:\n    time.sleep(0.05)\n    print(flush=True)\n"
STUCK = f"{SAYS_READY}time.sleep(600)\n"
SHOUTS = f"{SAYS_READY}sys.stdout.write('x' * 1_000_000)\nsys.stdout.flush()\ntime.sleep(600)\n"


class Children:
    """What is started, in this order; the last again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *scripts: str | None) -> None:
        self._scripts = list(scripts)
        self.started = 0
        monkeypatch.setattr(child_process, "control_arguments", self._arguments)
        monkeypatch.setattr(child_process, "RESTART_SECONDS_MIN", 0.01)
        monkeypatch.setattr(child_process, "SILENT_SECONDS", 2.0)

    def _arguments(self) -> list[str]:
        script = self._scripts[min(self.started, len(self._scripts) - 1)]
        self.started += 1
        if script is None:
            raise OSError(12, "Cannot allocate memory")
        return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("first", "starts"),
    [
        ((f"{SAYS_READY}sys.exit(3)\n",), 2),
        ((STUCK,), 2),
        ((SHOUTS,), 2),
        ((f"{SAYS_READY}", None, "", GARBLED, LIVES), 5),  # it ends, then cannot be started
    ],
    ids=["it ends", "it is stuck", "it shouts", "it cannot be started"],
)
async def test_it_comes_back(
    monkeypatch: pytest.MonkeyPatch, first: tuple[Any, ...], starts: int
) -> None:
    children = Children(monkeypatch, *first, LIVES)
    child = ControlChild({"settings": 1})
    await child.start()
    assert child.addresses == {"http": "here"}
    assert child._process is not None
    keeping = asyncio.create_task(child.keep())
    try:
        async with asyncio.timeout(300):  # beside other work a start takes long
            while children.started < starts or child._process.returncode is not None:
                assert not keeping.done(), "nobody would start it again"
                await asyncio.sleep(0.02)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        if child._process.returncode is None:
            child._process.kill()
            await child._process.wait()


def test_pauses_grow_and_begin_anew_after_a_long_life() -> None:
    short, well = 0.1, child_process.WELL_SECONDS
    patient, eager = Restarts(), Restarts(at_once=True)
    assert [patient.on_ended(short) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert [eager.on_ended(short) for _ in range(4)] == [0, 1, 2, 4]
    assert [eager.on_ended(each) for each in (well, short, short)] == [0, 1, 2]


def test_one_that_does_not_get_to_its_end_is_ended(tmp_path: Path) -> None:
    """The process itself: a close that hangs, and a thread that works on."""
    import subprocess
    import textwrap

    script = textwrap.dedent(
        """
        import asyncio, threading, time, msgspec
        from headrace.process.startup import control_plane_process as control

        class Endpoint:
            async def start(self): ...
            async def close(self): ...
            def addresses(self): return {}

        class Plane:
            def __init__(self, *_, **__): ...
            def observed(self): return ()
            async def start(self): threading.Thread(target=time.sleep, args=(600,)).start()
            def addresses(self): return {"http": "here"}
            async def wait_ended(self): await asyncio.sleep(0)
            async def close(self): await asyncio.sleep(600)

        control.ControlPlane = Plane
        control.make_endpoint = lambda *_: Endpoint()
        control.CLOSE_SECONDS = 0.2
        from headrace.config.settings import Settings
        asyncio.run(control.serve(control.StartOrder(settings=Settings(), addresses={})))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, timeout=300, check=False
    )
    assert done.returncode == 1
