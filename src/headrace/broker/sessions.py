"""Client connections: who they are and what they joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from headrace.wire.iggy.dialects import Dialect


@dataclass(slots=True, eq=False)
class Session:
    """One connection. Logging in again replaces the user; logging out keeps the connection."""

    client_id: int
    address: str
    dialect: Dialect
    user_uid: int | None = None
    seen: float = 0.0
    """Monotonic time of the last request."""
    last_poll: tuple[Dialect, bytes, object] | None = None
    """The last POLL as bytes and decoded: consumers send the same one over and over."""
    stale: bool = False
    """It was silent for too long: its groups went on without it."""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, client_id: int) -> Session | None:
        return self._sessions.get(client_id)

    def open(self, address: str, dialect: Dialect, now: float) -> Session:
        client_id = xxhash.xxh32_intdigest(address.encode())
        # Two addresses with one hash are rare, but a group must not take them for one member.
        while client_id == 0 or client_id in self._sessions:
            client_id = (client_id + 1) & 0xFFFF_FFFF
        session = Session(client_id, address, dialect, seen=now)
        self._sessions[client_id] = session
        return session

    def close(self, session: Session) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]
