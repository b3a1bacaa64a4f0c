"""What is asked for the front page of the broker, and how often."""

from __future__ import annotations

from typing import Any

from headrace.errors import UnavailableError
from headrace.web.broker_api import types as t
from headrace.web.diagnosis.cluster import CLUSTER_SECONDS, BrokerDiagnosis
from tests.simulator.runtime import Simulation
from tests.unit.web.diagnosis.test_problems_cluster import CLUSTER, group, node, stats


class Asked:
    """Stands for catalogue, groups and cluster."""

    def __init__(self) -> None:
        self.stats: Any = stats()
        self.sampled_ms = 0
        self.groups: dict[Any, Any] = {}
        self.asked = 0
        self.away = False

    async def describe(self) -> t.ClusterInfo:
        self.asked += 1
        if self.away:
            raise UnavailableError("nobody is there")
        return t.ClusterInfo(
            **{
                **{name: getattr(CLUSTER, name) for name in CLUSTER.__struct_fields__},
                "data_nodes": [node(1), node(2, alive=False)],
            }
        )


class Row:
    def row(self) -> t.GroupRow:
        return group(50_000, 10.0)


def test_the_cluster_is_asked_now_and_then() -> None:
    simulation = Simulation(1)
    runtime, asked = simulation.runtime("a"), Asked()
    asked.groups[1] = Row()
    everything: Any = asked

    async def look() -> None:
        trouble = BrokerDiagnosis(runtime, everything, everything, everything)
        for _ in range(2):
            asked.sampled_ms = runtime.clock.now_ms()
            kinds = sorted(one.kind for one in await trouble.look())
            assert kinds == ["group lags", "node down"]
        assert asked.asked == 1
        asked.away = True
        await runtime.clock.sleep(CLUSTER_SECONDS)
        asked.sampled_ms = runtime.clock.now_ms()
        assert [one.kind for one in await trouble.look()] == ["group lags"]
        await runtime.clock.sleep(60)
        assert [one.kind for one in await trouble.look()] == ["unreachable"]

    simulation.run(look())
