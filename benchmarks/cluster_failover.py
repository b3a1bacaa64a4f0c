"""How long partitions pause when the workers of one broker of three are killed, 20 times.

Three brokers with two workers each, three data nodes and a placement manager are processes on this
machine; twelve producers send one message after the other, each to a partition of its own. The
limits are the goals: two seconds in the median and three at worst for what the killed workers led,
0.2 seconds for the rest. They hold for a machine with cores to spare. The ratio is limit to figure.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster_load import BROKERS, WORKERS, Load, Struck, strike, wait_spread
from tests.cluster_processes import ClusterProcesses, running_cluster

KILLS = 20


def run() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        options = ("--nodes", "3", "--managers", "1", "--brokers", str(BROKERS))
        with running_cluster(Path(folder), *options, "--workers", str(WORKERS)) as cluster:
            wait_spread(cluster)
            struck = asyncio.run(_kill(cluster))
            cluster.stop()
    led = [pause for each in struck for pause in each.led]
    others = [pause for each in struck for pause in each.others]
    for name, value, limit in (
        ("partitions of killed workers, median", statistics.median(led), 2.0),
        ("partitions of killed workers, worst", max(led), 3.0),
        ("partitions of others, median", statistics.median(others), 0.2),
        ("partitions of others, worst", max(others), 0.2),
    ):
        yield {
            "name": f"pause: {name}",
            "value": 1000 * value,
            "unit": "ms",
            "limit": 1000 * limit,
            "ratio": limit / value,
        }


async def _kill(cluster: ClusterProcesses) -> list[Struck]:
    load, struck = Load(cluster, "failover"), list[Struck]()
    async with load.running():
        await asyncio.sleep(1.0)
        names = cluster.names("broker")
        for number in range(KILLS):
            struck.append(await strike(cluster, load, names[number % len(names)]))
        await load.wait_window()
    await load.check()
    return struck
