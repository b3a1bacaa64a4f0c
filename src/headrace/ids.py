"""Id types. Two integers of different meaning never meet in one signature without a name."""

from typing import NewType

OperatorId = NewType("OperatorId", int)  # an operator of an application's physical plan
WindowId = NewType("WindowId", int)  # see headrace.wire.umbilical.windows for its parts
