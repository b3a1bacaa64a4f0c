"""What is done with the keyboard alone."""

from __future__ import annotations

import time

from playwright.sync_api import Page

_TOGETHER_SECONDS = 1.0  # the page waits a little longer for the letter
_TRIES = 10


def go(page: Page, key: str) -> None:
    """Press g and a letter; again if a busy machine let so much time pass between them that the
    page may have taken them for two keys."""
    for _ in range(_TRIES):
        began = time.monotonic()
        page.keyboard.press("g")
        page.keyboard.press(key)
        if time.monotonic() - began < _TOGETHER_SECONDS:
            return
    raise AssertionError("the machine is too busy to press two keys")
