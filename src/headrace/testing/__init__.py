"""For the tests of people who build on Headrace: a real broker in the test's own process.

Settings may come in; a `LocalBroker` with an address comes out. It is a placement manager, a data
node and a broker in a thread that it owns, with a temporary folder that goes when the test run
ends. `plugin.py` makes it a fixture that pytest finds wherever Headrace is installed, beside a
stream for each test and a Spark session for each run. Begin to read in `broker.py`.
"""

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
