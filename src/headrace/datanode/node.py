"""The data node as its request handlers see it; `DataNodeService` is the one that there is."""

from __future__ import annotations

from typing import Protocol

from headrace.config.datanode import DataNodeSettings
from headrace.datanode.append.disk_share import PlainShare
from headrace.datanode.append.producers import EarlierRanges, ProducerTables
from headrace.datanode.control.node_files import MetadataSeen, Quarantine
from headrace.datanode.control.placement_contact import PlacementContact
from headrace.datanode.control.ranges import Ranges
from headrace.datanode.metrics import Counters
from headrace.datanode.replication.copying import Repairer
from headrace.datanode.replication.leader import LedRanges
from headrace.datanode.state import NodeState
from headrace.errors import HeadraceError
from headrace.net.sbp_access import Access
from headrace.runtime.interfaces import Runtime
from headrace.storage.range.log import RangeLog
from headrace.storage.store import LogStore


class DataNode(Protocol):
    runtime: Runtime
    settings: DataNodeSettings
    access: Access
    plain_share: PlainShare
    state: NodeState[RangeLog]
    quarantine: Quarantine
    metadata: MetadataSeen
    tables: ProducerTables
    counters: Counters
    contact: PlacementContact
    ranges: Ranges
    earlier: EarlierRanges
    leading: LedRanges
    repairer: Repairer

    @property
    def store(self) -> LogStore: ...

    def logs(self) -> list[RangeLog]:
        """The ranges that are served, without those in quarantine."""
        ...

    def reads_locally(self, machine: str) -> bool:
        """Whether a reader that runs there may be told where batches are, to read them itself."""
        ...

    def on_append_failed(self, error: HeadraceError) -> None:
        """Count the failure, and tell placement of a full disk."""
        ...
