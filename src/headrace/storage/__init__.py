"""The log on a data node's disk: segments, index, recovery, group commit."""

from headrace.config.datanode import StorageSettings
from headrace.storage.layout import CorruptSpan, RangeKey, RangeState, SegmentInfo
from headrace.storage.range.log import RangeLog
from headrace.storage.store import LogStore

__all__ = [
    "CorruptSpan",
    "LogStore",
    "RangeKey",
    "RangeLog",
    "RangeState",
    "SegmentInfo",
    "StorageSettings",
]
