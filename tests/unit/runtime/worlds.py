"""The same behaviour is asked of every runtime: on asyncio, on uvloop, and simulated."""

from __future__ import annotations

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from headrace.runtime import Runtime
from headrace.runtime.system import system_runtime
from tests.simulator.runtime import Simulation

T = TypeVar("T")


class World(ABC):
    """A runtime, a folder on its disk, and a loop to run on."""

    runtime: Runtime
    folder: str

    @abstractmethod
    def run(self, main: Coroutine[Any, Any, T]) -> T: ...


class SystemWorld(World):
    def __init__(self, folder: Path, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.runtime = system_runtime()
        self.folder = str(folder)
        self._loop_factory = loop_factory

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=self._loop_factory) as runner:
            result = runner.run(main)
            left = asyncio.all_tasks(runner.get_loop())
        assert not left
        gc.collect()  # an unclosed socket or file warns here, in the test that left it
        return result


class SimulatedWorld(World):
    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        self.runtime = self.simulation.runtime("host")
        self.folder = "/data"
        self.runtime.disk.make_folder(self.folder)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.simulation.run(main)


def make_world(kind: str, folder: Path) -> World:
    if kind == "asyncio":
        return SystemWorld(folder, asyncio.new_event_loop)
    if kind == "uvloop":
        return SystemWorld(folder, uvloop.new_event_loop)
    return SimulatedWorld(seed=int(kind.removeprefix("simulated ")))


WORLDS = ["asyncio", "uvloop", "simulated 1", "simulated 2", "simulated 3"]
DISKS = ["asyncio", "simulated 1"]  # the loop does not matter to a disk
