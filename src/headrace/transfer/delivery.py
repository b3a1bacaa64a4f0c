"""Messages into topics, each once: what a person's command sends, and sends again after a crash.

A delivery is a publisher whose windows are positions in what is read: closing window 500 says that
everything before position 500 is published. So the server itself remembers how far a copy came, in
the same step that publishes it, and whoever goes on asks it instead of a file. A plain Iggy server
has no windows: it gets the messages at least once, and remembers nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.client.iggy import IggyClient
from headrace.errors import NotFoundError
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.batch import split
from headrace.wire.iggy.messages.extensions import PublisherOpened, StagedSpan, TicketTopic
from headrace.wire.iggy.messages.messages import SendMessages
from headrace.wire.iggy.primitives import Partitioning

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

SEND_BYTES_MAX = 4 << 20  # of one request; more messages become several
SEND_SECONDS = 60.0
NOTHING = -1


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Messages for one partition; None leaves the choice to the server."""

    stream: str
    topic: str
    partition: int | None
    area: memoryview
    starts: Positions


class WindowDelivery:
    """Made by `open`. `last` is the position that everything before is published of; -1: none."""

    def __init__(self, client: IggyClient, opened: PublisherOpened | None) -> None:
        self._client = client
        self._opened = opened
        self.last = NOTHING if opened is None else opened.last_window

    @property
    def exactly_once(self) -> bool:
        return self._opened is not None

    @classmethod
    async def open(cls, client: IggyClient, name: str, *, run: str) -> WindowDelivery:
        """Whoever opens the name last is the one that may publish."""
        hello = await client.hello()
        if hello is None or c.CLOSE.name not in hello.features:
            return cls(client, None)
        return cls(client, await client.open_publisher(name, run))

    async def publish(self, position: int, pieces: Sequence[Piece], *, last: bool = False) -> bool:
        """Everything before `position` is published on return: all of it or, after an error, maybe.

        False if it was before, and then nothing is sent. `last` ends the delivery.
        """
        if self._opened is None:
            for piece in pieces:
                for request in _requests(piece):
                    await self._client.send_batch(request, timeout=SEND_SECONDS)
            return True
        if position <= self.last:
            return False
        spans = await self._stage(position, pieces)
        closed = await self._client.close_window(
            self._opened, previous=self.last, window=position, manifest=spans, last=last
        )
        self.last = position
        return not closed.already

    async def _stage(self, position: int, pieces: Sequence[Piece]) -> list[StagedSpan]:
        assert self._opened is not None, "a plain Iggy server stages nothing"
        return [
            await self._client.stage(self._opened, position, request)
            for piece in pieces
            for request in _requests(piece)
        ]


def _requests(piece: Piece) -> list[SendMessages]:
    where = (
        Partitioning.balanced()
        if piece.partition is None
        else Partitioning.to_partition(piece.partition)
    )
    return [
        SendMessages(piece.stream, piece.topic, where, starts, area)
        for area, starts in split(piece.area, piece.starts, SEND_BYTES_MAX)
    ]


async def describe_topic(client: IggyClient, stream: str, topic: str) -> TicketTopic | None:
    """The topic's uid, and where its partitions begin and end; None if there is no such topic."""
    try:
        ticket = await client.read_ticket([(stream, topic)])
    except NotFoundError:
        return None
    return ticket.topics[0]
