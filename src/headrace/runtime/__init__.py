"""Clock, Random, Executor, Disk, Transport, Processes: see `interfaces`."""

from headrace.runtime.interfaces import (
    Buffer,
    Clock,
    Connection,
    Disk,
    Executor,
    File,
    Listener,
    Lock,
    OnConnection,
    Process,
    Processes,
    Random,
    Runtime,
    Transport,
)

__all__ = [
    "Buffer",
    "Clock",
    "Connection",
    "Disk",
    "Executor",
    "File",
    "Listener",
    "Lock",
    "OnConnection",
    "Process",
    "Processes",
    "Random",
    "Runtime",
    "Transport",
]
