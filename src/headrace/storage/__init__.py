"""The log on a data node's disk.

Batches come in through `RangeLog.append` and go out through `RangeLog.read`. A `LogStore` owns one
data directory and all ranges in it. An append is made durable in `group_commit`: all ranges of a
durability level share its groups, and a group goes either to the segment files directly or through
the redo `journal`. `segments` is one file of a range: its bytes, its index, its scan; `range` puts
segments together to a log with a writer, a reader, control and repair. `folder` opens the data
directory and recovers what is in it, at every start.

Begin to read at `store`, then `range/log` and `range/writer`; `layout` lists the files.
"""

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
