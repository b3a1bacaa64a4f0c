"""What a process that serves tells others about itself: its HTTP endpoint, its traces."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.observability import tracing
from headrace.observability.logging import (
    LOG_FORMAT_VARIABLE,
    TRACES_RATIO_VARIABLE,
    TRACES_VARIABLE,
)

if TYPE_CHECKING:
    from headrace.config.settings import Settings
    from headrace.process.http_server import Endpoint
    from headrace.web.metrics.checks import Observed
    from headrace.web.metrics.process import ProcessReading


def make_endpoint(settings: Settings, roles: Sequence[Observed]) -> Endpoint:
    from headrace.process.http_server import Endpoint
    from headrace.process.startup.secret_references import read_reference
    from headrace.runtime.system import system_runtime

    token = settings.observability.metrics_token
    return Endpoint(
        system_runtime(),
        settings,
        roles,
        token=read_reference(token, "observability.metrics_token") if token else "",
        read_process=read_process,
    )


def read_process() -> ProcessReading:
    import psutil

    from headrace.web.metrics.process import ProcessReading

    return ProcessReading(
        memory_bytes=psutil.Process().memory_info().rss, threads=threading.active_count()
    )


@contextmanager
def observing(settings: Settings, role: str, log_format: str) -> Iterator[None]:
    """Record traces while the process serves, if the settings say where to. Its children log and
    trace likewise."""
    told = settings.observability
    os.environ[LOG_FORMAT_VARIABLE] = log_format
    os.environ[TRACES_VARIABLE] = told.traces_endpoint
    os.environ[TRACES_RATIO_VARIABLE] = str(told.traces_ratio)
    if not told.traces_endpoint:
        yield
        return
    tracing.start(
        told.traces_endpoint,
        service=f"headrace-{role}",
        instance=f"{os.uname().nodename}:{os.getpid()}",
        ratio=told.traces_ratio,
    )
    try:
        yield
    finally:
        tracing.stop()
