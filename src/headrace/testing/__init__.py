"""For the tests of people who build on Headrace: a real broker in the test's own process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.testing.broker import LocalBroker

__all__ = ["LocalBroker"]


def __getattr__(name: str) -> object:
    """At its first use: pytest imports the plugin beside this in every run."""
    if name == "LocalBroker":
        from headrace.testing.broker import LocalBroker

        return LocalBroker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
