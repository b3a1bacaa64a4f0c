"""The only door to the outside world: clock, randomness, threads, files, sockets, processes.

Every service gets a `Runtime` and asks it for these, so that a simulator can stand in for a whole
machine. `interfaces` says what a runtime offers; `system` is a real machine's.
"""

from headrace.runtime.interfaces import (
    Address,
    Buffer,
    Clock,
    Connection,
    DatagramListener,
    Detached,
    Disk,
    Executor,
    File,
    Inbox,
    Listener,
    Lock,
    MovableConnection,
    OnConnection,
    OnDatagram,
    Process,
    Processes,
    Random,
    Runtime,
    Transport,
    Worker,
)

__all__ = [
    "Address",
    "Buffer",
    "Clock",
    "Connection",
    "DatagramListener",
    "Detached",
    "Disk",
    "Executor",
    "File",
    "Inbox",
    "Listener",
    "Lock",
    "MovableConnection",
    "OnConnection",
    "OnDatagram",
    "Process",
    "Processes",
    "Random",
    "Runtime",
    "Transport",
    "Worker",
]
