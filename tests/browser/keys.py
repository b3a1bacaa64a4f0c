"""What is done with the keyboard alone."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page

SOON_MS = 3_000
_TRIES = 10


def go(page: Page, key: str, arrived: Callable[[], None]) -> None:
    """Press g and a letter; again if the page took them for two keys, far apart on a busy
    machine. `arrived` expects what it leads to within SOON_MS."""
    for tries_left in reversed(range(_TRIES)):
        page.keyboard.press("g")
        page.keyboard.press(key)
        try:
            return arrived()
        except AssertionError:
            if not tries_left:
                raise
