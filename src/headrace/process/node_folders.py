"""Folders of the data nodes and brokers in a data directory, and which worker runs which.

The first worker has `node` and `broker`, as a server of one process does, so that either opens what
the other left; worker 1 has `node-1` and `broker-1`, and so on. Data stays in the folder that it
was written to: when there are fewer workers than folders, each runs the data nodes of several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec.structs import replace

from headrace.config.settings import Settings
from headrace.net.addresses import advertised, parse_address
from headrace.runtime import Runtime

NODE = "node"
_NODES = re.compile(r"node(?:-([1-9][0-9]*))?")


def node_folder(number: int) -> str:
    return f"{NODE}-{number}" if number else NODE


def broker_folder(worker: int) -> str:
    return f"broker-{worker}" if worker else "broker"


def node_numbers(names: Iterable[str]) -> list[int]:
    """Of the data nodes among the names in a data directory, in order."""
    matches = map(_NODES.fullmatch, names)
    return sorted(int(found[1] or 0) for found in matches if found is not None)


def numbers_of(worker: int, workers: int, found: Iterable[int]) -> tuple[int, ...]:
    """The data nodes that a worker runs: its own, then those of workers that are no more."""
    return tuple(sorted({worker, *(each for each in found if each % workers == worker)}))


async def find_nodes(runtime: Runtime, data_dir: str) -> list[int]:
    """Numbers of the data nodes that a data directory has; the first one, too, if it is new."""
    files = runtime.executor("process", 1)
    try:
        names = await files.run(runtime.disk.list, data_dir)
    finally:
        files.close()
    return sorted({0, *node_numbers(names)})


def advertised_host(advertise: str) -> str:
    """What a further node tells others: the same host, and the port that it has itself."""
    if not advertise:
        return ""
    host = parse_address(advertised(advertise, "127.0.0.1:1"))[0]
    return f"[{host}]" if ":" in host else host


def without_port(settings: Settings) -> Settings:
    """For a data node beside the one that has `node_port`: any port that is free."""
    return replace(settings, node_port=0, advertise=advertised_host(settings.advertise))
