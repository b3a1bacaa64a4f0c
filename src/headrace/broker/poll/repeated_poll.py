"""A poll like the session's last one, but for its offset.

Consumers send the same poll over and over, so what its first bytes mean is kept with the session:
which partition, for whom, and that the user may. It holds until anything in the catalogue changes
or the session's user does. A repeated poll whose messages are in memory is answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.core import Broker
from headrace.broker.partitions.offsets import Place, Reader
from headrace.broker.partitions.partition import PartitionLog
from headrace.broker.sessions.sessions import Session
from headrace.runtime.interfaces import Buffer
from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.messages.messages import (
    POLL_HEAD,
    POLL_TAIL,
    POLL_TAIL_BYTES,
    encode_poll_response,
)
from headrace.wire.iggy.primitives import StrategyKind

_OFFSET = int(StrategyKind.OFFSET)
_NEXT = int(StrategyKind.NEXT)


@dataclass(frozen=True, slots=True)
class KnownPoll:
    """What a poll of a single consumer meant, when it was last answered the long way."""

    front: bytes
    dialect: Dialect
    user_uid: int | None
    catalogue_version: int
    partition: int
    log: PartitionLog
    place: Place
    reader: Reader


def remember(
    broker: Broker,
    session: Session,
    partition: int,
    log: PartitionLog,
    place: Place,
    reader: Reader,
) -> None:
    """The session's last poll was authorised and is answered from here."""
    if session.last_poll is not None and session.grant is None:  # a grant ends at its time
        dialect, front = session.last_poll
        session.known_poll = KnownPoll(
            front,
            dialect,
            session.user_uid,
            broker.catalogue.version,
            partition,
            log,
            place,
            reader,
        )


def answer_at_once(
    broker: Broker, session: Session, payload: memoryview
) -> Sequence[Buffer] | None:
    """None: it is not that poll, or it needs more than memory; ask the long way."""
    known = session.known_poll
    front = len(payload) - POLL_TAIL_BYTES
    if (
        known is None
        or front <= 0
        or known.front != payload[:front].tobytes()
        or known.catalogue_version != broker.catalogue.version
        or known.user_uid != session.user_uid
        or known.dialect is not session.spoken.dialect
        or known.log.failed
    ):
        return None
    kind, value, count, auto_commit = POLL_TAIL.unpack_from(payload, front)
    if auto_commit or not count:
        return None
    log = known.log
    if kind == _NEXT:
        stored = broker.offsets.get(known.place, known.reader)
        value = log.start_offset if stored is None else stored + 1
    elif kind != _OFFSET:
        return None
    found = log.read_kept(value, count, bytes_max=broker.settings.poll_bytes_max)
    if found is None:
        return None
    broker.traffic.polled_messages += found.count
    broker.traffic.polled_bytes += found.bytes
    if known.dialect is Dialect.C:
        return [
            POLL_HEAD.pack(known.partition, log.current_offset, found.count),
            *broker.converted.batches(log.serial, known.partition, found),
        ]
    slices = broker.converted.summed(log.serial, found)
    return encode_poll_response(
        known.partition, log.current_offset, found.count, slices, known.dialect
    )
