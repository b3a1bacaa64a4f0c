"""What happened to an application, newest last, bounded."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class EventType(Enum):
    START_CONTAINER = "StartContainer"
    STOP_CONTAINER = "StopContainer"
    CONTAINER_ERROR = "ContainerError"
    START_OPERATOR = "StartOperator"
    STOP_OPERATOR = "StopOperator"
    OPERATOR_ERROR = "OperatorError"
    CREATE_OPERATOR = "CreateOperator"
    REMOVE_OPERATOR = "RemoveOperator"
    PARTITION = "Partition"
    SET_PROPERTY = "SetOperatorProperty"
    CHANGE_PLAN = "ChangeLogicalPlan"
    ROLL_BACK = "RollBack"
    REPLAY = "Replay"
    RECORDING = "Recording"
    DATA_GAP = "DataGap"  # messages were gone before they were read; what is there goes on
    RECOVERED = "RecoverContainer"  # the first new window after a loss, and how long it took
    SUBMIT = "SubmitApplication"
    STOP = "StopApplication"
    RESUME = "ResumeApplication"
    FINISH = "FinishApplication"


_ERRORS = frozenset({EventType.CONTAINER_ERROR, EventType.OPERATOR_ERROR, EventType.DATA_GAP})


@dataclass(frozen=True, slots=True)
class Event:
    id: int
    time_ms: int
    type: EventType
    reason: str = ""
    group: int = (
        0  # an error and the restart it causes share one, so that they can be shown together
    )
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def level(self) -> str:
        return "ERROR" if self.type in _ERRORS else "INFO"

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "time_ms": self.time_ms,
            "type": self.type.value,
            "level": self.level,
            "reason": self.reason,
            "group": self.group,
            **self.data,
        }


class Events:
    def __init__(self, most: int, kept: Iterable[Mapping[str, Any]] = ()) -> None:
        """`kept` are those of an earlier life, as `to_json` gave them."""
        self._events: deque[Event] = deque(map(_event, kept), maxlen=most)
        self._next_id = self._events[-1].id + 1 if self._events else 1
        self._group = self._events[-1].group if self._events else 0
        self._unrecorded: list[Event] = []

    def add(self, time_ms: int, type: EventType, reason: str = "", **data: Any) -> Event:
        if type in _ERRORS:
            self._group += 1
        event = Event(self._next_id, time_ms, type, reason, self._group, data)
        self._next_id += 1
        self._events.append(event)
        self._unrecorded.append(event)
        return event

    def take_unrecorded(self) -> list[Event]:
        """Those that happened since the last call."""
        taken, self._unrecorded = self._unrecorded, []
        return taken

    def list(self, *, after: int = 0, type: EventType | None = None) -> list[Event]:
        return [one for one in self._events if one.id > after and type in (None, one.type)]

    def newest(self, most: int | None = None) -> Iterable[Event]:
        """Oldest first; all, or only so many of them."""
        skipped = 0 if most is None else max(0, len(self._events) - most)
        return itertools.islice(self._events, skipped, None)


def _event(source: Mapping[str, Any]) -> Event:
    known = ("id", "time_ms", "type", "level", "reason", "group")
    data = {name: value for name, value in source.items() if name not in known}
    return Event(
        source["id"],
        source["time_ms"],
        EventType(source["type"]),
        source["reason"],
        source["group"],
        data,
    )
