"""What every test leaves as it found it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Programs configure logging when they start; one that was started in this process must not
    leave its handler to the tests after it, whose output it would try to write to."""
    root = logging.getLogger()
    level, before = root.level, set(root.handlers)
    yield
    for handler in set(root.handlers) - before:
        if handler.get_name() == "headrace":
            root.removeHandler(handler)
    root.setLevel(level)
