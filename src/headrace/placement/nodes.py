"""Data nodes: who exists, who lives, who gets the next range.

Registration is durable. Liveness and load are not: after a restart a node is usable from its first
heartbeat on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from headrace.errors import AlreadyExistsError, NotEnoughNodesError
from headrace.placement.records import NodeRecord, Operation, Put
from headrace.wire.sbp.messages import ReportMetricsRequest

_MB = 1 << 20
_GB = 1 << 30


@dataclass(slots=True)
class Nodes:
    timeout_ms: int
    disk_free_bytes_min: int = 0
    records: dict[int, NodeRecord] = field(default_factory=dict)
    _seen_ms: dict[int, int] = field(default_factory=dict)
    _metrics: dict[int, ReportMetricsRequest] = field(default_factory=dict)

    def register(self, node_id: int, address: str, store_id: str) -> list[Operation]:
        """What to write when a heartbeat tells something new; nothing otherwise."""
        known = self.records.get(node_id)
        record = NodeRecord(node_id=node_id, address=address, store_id=store_id)
        if known == record:
            return []
        if known is not None and known.store_id != store_id:
            # The same id over another store: a copied or emptied directory. Its answers to a seal
            # would be taken for those of the store that took the appends.
            raise AlreadyExistsError("node id belongs to another store", node_id=node_id)
        operations: list[Operation] = [
            Put(NodeRecord(node_id=other.node_id, address="", store_id=other.store_id))
            for other in self.records.values()
            if address and other.address == address and other.node_id != node_id
        ]  # whoever had the address before is not reached there any more
        operations.append(Put(record))
        return operations

    def on_heartbeat(self, node_id: int, now_ms: int) -> None:
        self._seen_ms[node_id] = now_ms

    def on_metrics(self, node_id: int, metrics: ReportMetricsRequest) -> None:
        self._metrics[node_id] = metrics

    def on_tick(self, now_ms: int) -> list[int]:
        """Nodes lost since the last tick."""
        lost = [n for n, seen_ms in self._seen_ms.items() if now_ms - seen_ms > self.timeout_ms]
        for node_id in lost:
            del self._seen_ms[node_id]
            self._metrics.pop(node_id, None)
        return lost

    def on_unreachable(self, node_id: int) -> None:
        """It did not answer: no new ranges until its next heartbeat."""
        self._seen_ms.pop(node_id, None)

    def alive(self) -> list[int]:
        return sorted(node_id for node_id in self._seen_ms if node_id in self.records)

    def is_alive(self, node_id: int) -> bool:
        return node_id in self._seen_ms and node_id in self.records

    def address(self, node_id: int) -> str:
        record = self.records.get(node_id)
        return record.address if record else ""

    def metrics(self, node_id: int) -> ReportMetricsRequest | None:
        return self._metrics.get(node_id)

    def choose(
        self,
        count: int,
        *,
        avoid: Collection[int] = (),
        open_ranges: Callable[[int], int],
        below: Callable[[int], int],
    ) -> tuple[int, ...]:
        """Distinct live nodes, the primary first: the better of two drawn at random, each time.

        Nodes in `avoid` and nodes short of disk come last; with too few others they are taken all
        the same, because a full disk refuses by itself and a single node has no alternative.
        """
        alive = self.alive()
        if len(alive) < count:
            raise NotEnoughNodesError("not enough data nodes", wanted=count, alive=len(alive))
        preferred = [n for n in alive if n not in avoid and not self._short_of_disk(n)]
        rest = [n for n in alive if n not in preferred]
        chosen: list[int] = []
        while len(chosen) < count:
            pool = preferred or rest
            first = pool[below(len(pool))]
            second = pool[below(len(pool))]
            best = max(first, second, key=lambda n: (self.score(n), -open_ranges(n), -n))
            pool.remove(best)
            chosen.append(best)
        return tuple(chosen)

    def _short_of_disk(self, node_id: int) -> bool:
        metrics = self._metrics.get(node_id)
        return metrics is not None and metrics.disk_free_space < self.disk_free_bytes_min

    def score(self, node_id: int) -> int:
        """Higher is better; a node that has not reported counts as the average of the others."""
        metrics = self._metrics.get(node_id)
        if metrics is not None:
            return load_score(metrics)
        known = [load_score(m) for m in self._metrics.values()]
        return sum(known) // len(known) if known else 0


def load_score(metrics: ReportMetricsRequest) -> int:
    """Ten points less per unit of load, ten more per 50 GB of free disk."""
    units = (
        metrics.disk_in_rate / (100 * _MB)
        + metrics.disk_out_rate / (100 * _MB)
        + metrics.disk_unindexed_data_size / (100 * _MB)
        + metrics.memory_used / _GB
        + metrics.uring_inflight_task_cnt / 128
        + metrics.uring_pending_task_cnt / 1024
        + metrics.uring_task_avg_latency / 10
        + metrics.network_append_rate / 256
        + metrics.network_fetch_rate / 256
        + metrics.network_failed_append_rate
        + metrics.network_failed_fetch_rate
        + metrics.network_append_avg_latency
        + metrics.range_missing_replica_cnt / 2
        + metrics.range_active_cnt / 10
    )
    free = min(metrics.disk_free_space, 1000 * _GB) / (50 * _GB)
    return round(10 * (free - units))
