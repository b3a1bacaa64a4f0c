"""What every test leaves as it found it, and how the Java of Spark starts."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# How long one example takes says more of what else the machine does than of us.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")

# A Spark of a test lives for seconds, and optimising its code takes more time than the code then
# saves: with the quick compiler alone a third less of the processor until a first query is through.
# It stands here and not in Spark's settings, so that every Java that a test starts gets it, those
# of command lines, clusters and other versions too; `make soak` runs Java as its users do.
if "HEADRACE_SOAK" not in os.environ:
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


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
