"""The live screen of `headrace top`: looks, draws, listens to keys."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from headrace.cli.top.sample import Look, Pipelines, look
from headrace.cli.top.top_view import SORTS, draw
from headrace.client.iggy import IggyClient


class Screen:
    def __init__(self, sort: str, interval: float) -> None:
        self._sort = sort
        self._interval = interval
        self._paused = False
        self._quit = False
        self._look_now = asyncio.Event()
        self._draw_now = asyncio.Event()

    async def run(self, client: IggyClient, pipelines: Pipelines | None, count: int) -> None:
        console = Console()
        with (
            _keys(self._on_keys),
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            found, looks = None, 0
            while not self._quit and not (count and looks >= count):
                if found is None or not self._paused:
                    found = await look(client, pipelines, found)
                    looks += 1
                await self._show(live, found, console.size.height)

    async def _show(self, live: Live, found: Look, height: int) -> None:
        """Until the next look is due; a key draws at once."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._interval
        self._look_now.clear()
        while not self._quit and not self._look_now.is_set() and loop.time() < until:
            self._draw_now.clear()
            live.update(
                draw(found, sort=self._sort, paused=self._paused, height=height), refresh=True
            )
            try:
                async with asyncio.timeout_at(until):
                    await self._draw_now.wait()
            except TimeoutError:
                return

    def _on_keys(self, keys: str) -> None:
        for key in keys:
            match key:
                case "q" | "\x03" | "\x04":
                    self._quit = True
                case "p" | " ":
                    self._paused = not self._paused
                case "s":
                    self._sort = SORTS[(SORTS.index(self._sort) + 1) % len(SORTS)]
                case "r":
                    self._look_now.set()
        self._draw_now.set()


@contextmanager
def _keys(on_keys: Callable[[str], None]) -> Iterator[None]:
    """Keys as they are pressed, without echo; the terminal is as before afterwards."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        data = os.read(descriptor, 64)
        on_keys(data.decode("ascii", "ignore") if data else "q")

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
