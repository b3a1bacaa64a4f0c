"""Messages that do not fit their schema, sent on to a topic of their own.

A dead letter is the message as it was (payload, key and user headers), with headers that say where
it stood and why it is there. Tasks send them while they read, so a task that is repeated sends them
again: delivery is at least once, and the place in the headers tells repeats apart.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.client.arrow import to_area, to_record_batch
from headrace.errors import LocalProtocolError, NotFoundError
from headrace.spark.options import dead_letter_target
from headrace.transfer.dead_letters import PREFIX
from headrace.wire.iggy.batch import split

if TYPE_CHECKING:
    from headrace.client.raw_messages import Area
    from headrace.spark.formats.decoding import Bad
    from headrace.spark.options import Target
    from headrace.spark.server import Server
    from headrace.wire.iggy.batch import Positions

_HEADERS = pa.map_(pa.string(), pa.binary())
_SEND_BYTES_MAX = 4 << 20


class DeadLetters:
    """Sends the bad messages of one partition."""

    def __init__(self, server: Server, source: Target, topic: str, partition: int) -> None:
        self._server = server
        self._source = source
        self._partition = partition
        self._target = dead_letter_target(source, topic)

    def __call__(self, area: memoryview, starts: Positions, bad: list[Bad]) -> None:
        letters = dead_letters(
            area,
            starts,
            bad,
            stream=self._source.stream,
            topic=self._source.topic,
            partition=self._partition,
        )
        for piece, positions in split(*letters, _SEND_BYTES_MAX):
            try:
                self._server.send_soon(self._target, None, piece, positions).result()
            except NotFoundError:
                self._server.create_topic(self._target)
                self._server.send_soon(self._target, None, piece, positions).result()


def dead_letters(
    area: memoryview,
    starts: Positions,
    bad: list[Bad],
    *,
    stream: str,
    topic: str,
    partition: int,
) -> Area:
    """The messages to send for the bad ones of an area."""
    names = ("offset", "key", "headers", "payload")
    batch = to_record_batch(
        area, starts, stream=stream, topic=topic, partition=partition, names=names
    ).take(pa.array([each.row for each in bad], pa.int64()))
    offsets = batch.column("offset").to_pylist()
    added = [
        {
            f"{PREFIX}reason": each.reason.encode(),
            f"{PREFIX}stream": stream.encode(),
            f"{PREFIX}topic": topic.encode(),
            f"{PREFIX}partition": b"%d" % partition,
            f"{PREFIX}offset": b"%d" % offset,
        }
        for each, offset in zip(bad, offsets, strict=True)
    ]
    own = [dict(pairs or ()) for pairs in batch.column("headers").to_pylist()]
    for headers in ([{**a, **b} for a, b in zip(own, added, strict=True)], added):
        # Headers have a size limit: what is ours goes first, and the place leads to the original.
        with suppress(LocalProtocolError):
            pairs = pa.array([list(each.items()) for each in headers], _HEADERS)
            return to_area(batch.column("payload"), batch.column("key"), pairs)
    raise LocalProtocolError("a dead letter's headers are too large")
