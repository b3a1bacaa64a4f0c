"""What a server of Iggy's framings asks of whoever lets its connections move between processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from headrace.runtime.interfaces import Connection

S = TypeVar("S")
S_contra = TypeVar("S_contra", contravariant=True)


class Mover(Protocol[S_contra]):
    """Hands connections to another process, between two of their requests."""

    def is_due(self, session: S_contra) -> bool:
        """Whether its connection should be elsewhere; asked after answers, so soon answered."""

    async def move(
        self, session: S_contra, connection: Connection, unfinished: bytes, *, has_heads: bool
    ) -> Connection | None:
        """None when another process serves it from now on, which has taken over the session, too.
        Else the connection to go on with: the same, or another one where `unfinished` is received
        again. OutcomeUnknownError when the connection is over."""


@dataclass(frozen=True, slots=True)
class Begun(Generic[S]):
    """A connection that was served elsewhere: what is known of it."""

    open_session: Callable[[Connection], S]
    has_heads: bool
