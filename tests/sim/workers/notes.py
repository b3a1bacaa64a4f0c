"""What clients of the workers did and were told, and what that forbids to find at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.wire.iggy.messages.messages import Message

REVOKED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch that was acknowledged."""

    partition: int
    payloads: tuple[bytes, ...]
    begun: float
    ended: float
    base_offset: int = -1
    """Where the answer says it is; -1: it does not say."""


@dataclass(frozen=True, slots=True)
class Ban:
    """A user may not send: from the acknowledgement until somebody begins to allow it again."""

    begins: float
    ends: float = float("inf")


@dataclass(slots=True)
class Notes:
    complain: Callable[[str], None]
    sent: list[Sent] = field(default_factory=list)
    unknown: set[bytes] = field(default_factory=set)
    """Sent, but the answer got lost: each may or may not be there, once."""
    refused: set[bytes] = field(default_factory=set)
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """What was polled, by partition and offset."""
    given: dict[tuple[int, int], str] = field(default_factory=dict)
    """To which member of the group."""
    consumed: dict[int, int] = field(default_factory=dict)
    """By partition, the last offset that a consumer with auto-commit was given."""
    doubtful: set[int] = field(default_factory=set)
    """Partitions with a poll since then that was not answered."""
    stored: dict[int, int] = field(default_factory=dict)
    """By partition, the offset whose storing was acknowledged last."""
    maybe_stored: dict[int, set[int]] = field(default_factory=dict)
    bans: list[Ban] = field(default_factory=list)
    banned_sends: list[tuple[float, float]] = field(default_factory=list)
    """When acknowledged sends of the user who is banned now and then began and ended."""
    windows: list[tuple[bytes, ...]] = field(default_factory=list)
    """Published, in this order; what a window holds of each partition."""
    open_window: tuple[bytes, ...] = ()
    """Published whole or not at all."""
    topics: dict[str, bool] = field(default_factory=dict)
    """Whether they exist, of those of which it is known."""
    done: dict[str, int] = field(default_factory=dict)
    """How often each kind of client got what it asked for."""

    def count(self, kind: str) -> None:
        self.done[kind] = self.done.get(kind, 0) + 1

    # -- on the way

    def on_polled(self, partition: int, messages: list[Message]) -> None:
        for message in messages:
            payload = bytes(message.payload)
            known = self.seen.setdefault((partition, message.offset), payload)
            if known != payload:
                self.complain(
                    f"changed: {partition}/{message.offset} was {known!r}, is {payload!r}"
                )

    def on_given(self, member: str, partition: int, messages: list[Message]) -> None:
        self.on_polled(partition, messages)
        for message in messages:
            known = self.given.setdefault((partition, message.offset), member)
            if known != member:
                self.complain(f"given twice: {partition}/{message.offset} to {known} and {member}")

    def on_consumed(self, partition: int, messages: list[Message], *, commits: bool = True) -> None:
        self.on_polled(partition, messages)
        last = self.consumed.get(partition, -1)
        first = messages[0].offset if messages else last + 1
        if first <= last:
            self.complain(f"offset went back: {partition} was consumed to {last}, gives {first}")
        elif first > last + 1 and partition not in self.doubtful:
            self.complain(f"offset jumped: {partition} was consumed to {last}, gives {first}")
        if messages and commits:
            self.consumed[partition] = messages[-1].offset
            self.doubtful.discard(partition)

    def on_offset(self, partition: int, offset: int | None) -> None:
        """What a consumer's stored offset is said to be."""
        stored = self.stored.get(partition)
        if offset != stored and offset not in self.maybe_stored.get(partition, ()):
            self.complain(f"offset went back: {partition} stores {offset}, acknowledged {stored}")

    # -- at the end

    def check(self, logs: dict[int, list[Message]]) -> None:
        """`logs` has all that each partition of the topic holds."""
        known = {payload for batch in self.sent for payload in batch.payloads}
        counts: dict[bytes, int] = {}
        for partition, messages in logs.items():
            offsets = [message.offset for message in messages]
            if offsets != list(range(len(messages))):
                self.complain(f"not dense: {partition} has {offsets}")
            for message in messages:
                payload = bytes(message.payload)
                counts[payload] = counts.get(payload, 0) + 1
                if payload in self.refused:
                    self.complain(f"refused, and there: {payload!r}")
                elif payload not in known and payload not in self.unknown:
                    self.complain(f"invented: {payload!r}")
        for payload, count in counts.items():
            if count > 1:
                self.complain(f"doubled: {payload!r} is there {count} times")
        for (partition, offset), payload in self.seen.items():
            found = logs[partition][offset : offset + 1]
            if not found or bytes(found[0].payload) != payload:
                self.complain(f"changed: {partition}/{offset} was {payload!r}")
        for partition in logs:
            log = [bytes(message.payload) for message in logs[partition]]
            self._check_partition(partition, log)
        for begun, ended in self.banned_sends:
            for ban in self.bans:
                if begun > ban.begins + REVOKED_SECONDS and ended < ban.ends:
                    self.complain(f"right: sent at {begun:.3f}, revoked at {ban.begins:.3f}")

    def _check_partition(self, partition: int, log: list[bytes]) -> None:
        at = {payload: offset for offset, payload in enumerate(log)}
        placed: list[tuple[int, Sent]] = []
        for batch in self.sent:
            if batch.partition != partition:
                continue
            first = at.get(batch.payloads[0])
            if first is None or tuple(log[first : first + len(batch.payloads)]) != batch.payloads:
                self.complain(f"lost: {batch.payloads} of {partition}, sent at {batch.begun:.3f}")
                continue
            if batch.base_offset not in (-1, first):
                self.complain(f"misplaced: {batch.payloads} at {first}, not {batch.base_offset}")
            placed.append((first, batch))
        placed.sort(key=lambda each: each[0])
        latest = 0.0
        for _, batch in placed:
            if batch.ended < latest:
                self.complain(f"reordered: {batch.payloads} of {partition}")
            latest = max(latest, batch.begun)

    def windows_whole(self, logs: list[list[bytes]]) -> bool:
        """`logs` has what each partition of the windows' topic holds."""
        if logs == _columns(self.windows, len(logs)):
            return True
        with_open = [*self.windows, self.open_window] if self.open_window else self.windows
        return logs == _columns(with_open, len(logs))


def _columns(windows: list[tuple[bytes, ...]], count: int) -> list[list[bytes]]:
    return [[window[column] for window in windows] for column in range(count)]
