"""Id types. Two integers of different meaning never meet in one signature without a name."""

from typing import NewType

StreamId = NewType("StreamId", int)  # an SBP stream, given out by the placement manager
RangeIndex = NewType("RangeIndex", int)  # position of a range in its stream, from 0
NodeId = NewType("NodeId", int)  # a data node
Epoch = NewType("Epoch", int)  # of a lease; a higher epoch fences every lower one
Offset = NewType("Offset", int)  # of a record in its stream
Uid = NewType("Uid", int)  # of a catalogue resource; never used again
ContainerId = NewType("ContainerId", str)
OperatorId = NewType("OperatorId", int)
WindowId = NewType("WindowId", int)
