"""Asks what `problems_cluster` judges: the catalogue, the groups, now and then the cluster."""

from __future__ import annotations

from headrace.errors import HeadraceError
from headrace.runtime import Runtime
from headrace.web.broker_api import types as t
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.cluster_api import Cluster
from headrace.web.broker_api.lag import GroupWatch
from headrace.web.diagnosis.cluster import broker_problems
from headrace.web.diagnosis.types import Problem

CLUSTER_SECONDS = 5.0


class BrokerTrouble:
    def __init__(
        self, runtime: Runtime, catalogue: Catalogue, groups: GroupWatch, cluster: Cluster
    ) -> None:
        self._clock = runtime.clock
        self._catalogue = catalogue
        self._groups = groups
        self._cluster = cluster
        self._described: t.ClusterInfo | None = None
        self._ask_at = 0.0

    async def look(self) -> list[Problem]:
        if self._clock.monotonic() >= self._ask_at:
            await self._describe()
        return broker_problems(
            self._catalogue.stats,
            self._clock.now_ms() - self._catalogue.sampled_ms,
            cluster=self._described,
            groups=[one.row() for one in self._groups.groups.values()],
        )

    async def _describe(self) -> None:
        self._ask_at = self._clock.monotonic() + CLUSTER_SECONDS
        try:
            self._described = await self._cluster.describe()
        except HeadraceError:
            self._described = None  # nobody answers: the broker's silence says so
