"""What a broker counts of its requests: plain integers and one histogram for each command.

A request is counted here and nowhere else: once, when it is answered. Everything here is bounded:
commands by the protocol's table, dialects by their enum, refusals by the protocol's list. A code
outside the table counts as command -1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import count

from headrace.observability.metrics import LATENCY_SECONDS, Histogram
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.dialects import Dialect

UNKNOWN = -1
_ERROR_CODES_MAX = 200
_KNOWN = frozenset(c.SERVED)
_POLL = c.POLL_MESSAGES.code
_INDEX = dict(zip(Dialect, count(), strict=False))


class CommandTraffic:
    __slots__ = ("by_dialect", "durations", "errors")

    def __init__(self) -> None:
        self.by_dialect = [0] * len(_INDEX)
        self.durations = Histogram()
        self.errors: dict[int, int] = {}


class Traffic:
    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.sent_messages = 0
        self.sent_bytes = 0
        self.polled_messages = 0
        self.polled_bytes = 0
        self.repeated_requests = 0
        """Requests of dialect C that were answered as they had been before."""
        self.requests_passed_on = 0
        """Requests of clients of this worker that another one answered."""
        self.requests_taken_in = 0
        """Requests of clients of other workers that this one answered."""
        self.commands: dict[int, CommandTraffic] = {}

    def totals(self) -> dict[str, int]:
        """The figures over all commands and dialects, by name."""
        commands = self.commands.values()
        return {
            "sent_messages": self.sent_messages,
            "sent_bytes": self.sent_bytes,
            "polled_messages": self.polled_messages,
            "polled_bytes": self.polled_bytes,
            "requests": sum(sum(command.by_dialect) for command in commands),
            "refusals": sum(sum(command.errors.values()) for command in commands),
            "repeated_requests": self.repeated_requests,
            "requests_passed_on": self.requests_passed_on,
            "requests_taken_in": self.requests_taken_in,
        }

    def on_answer(
        self,
        code: int,
        dialect: Dialect,
        seconds: float,
        size: int,
        pieces: Sequence[Buffer],
        status: int = 0,
    ) -> None:
        """`size` is the request's, without its frame's header. Called for every request: what
        `Histogram.observe` does stands here too, because a call costs as much again."""
        command = self.commands.get(code)
        if command is None:
            command = self.commands.setdefault(
                code if code in _KNOWN else UNKNOWN, CommandTraffic()
            )
        command.by_dialect[_INDEX[dialect]] += 1
        durations = command.durations
        durations.counts[bisect_left(LATENCY_SECONDS, seconds)] += 1
        durations.seconds += seconds
        self.bytes_in += size
        for piece in pieces:
            self.bytes_out += len(piece)
        if status:
            errors = command.errors
            if status in errors or len(errors) < _ERROR_CODES_MAX:
                errors[status] = errors.get(status, 0) + 1

    def on_poll_at_once(self, dialect: Dialect, size: int, pieces: Sequence[Buffer]) -> None:
        """A poll answered from memory without a wait: a few microseconds, which two looks at the
        clock would make noticeably more. It counts as no time."""
        command = self.commands.get(_POLL)
        if command is None:
            command = self.commands[_POLL] = CommandTraffic()
        command.by_dialect[_INDEX[dialect]] += 1
        command.durations.counts[0] += 1
        self.bytes_in += size
        for piece in pieces:
            self.bytes_out += len(piece)


def command_name(code: int) -> str:
    """The label of a command: its name in the table in lower case."""
    return "unknown" if code == UNKNOWN else c.SERVED[code].name.lower()


def dialect_counts(command: CommandTraffic) -> list[tuple[str, int]]:
    return [
        (dialect.value, number)
        for dialect, number in zip(Dialect, command.by_dialect, strict=True)
        if number
    ]
