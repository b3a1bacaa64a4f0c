"""What workers say to each other: the head of each frame of a link, as msgpack.

A request's body, where it has one, is what a client sent; an answer's is what a client gets, or the
msgpack of what the request's docstring names. Nothing here is seen by clients.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from headrace.broker.partitions.offsets import Place
from headrace.wire.iggy.messages.extensions import WorkerFigures


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True): ...


class GroupState(msgspec.Struct, frozen=True, array_like=True):
    uid: int
    generation: int
    members: list[tuple[int, list[int]]]
    """Client ids in the order they joined, with their partitions."""


class SessionState(msgspec.Struct, frozen=True, array_like=True):
    """Whose request is passed on, as far as who answers it must know."""

    client_id: int
    address: str
    dialect: str
    user_uid: int | None
    login: str
    transport: int
    number: int
    client: bytes
    grant: bytes
    """Encoded; empty of users of the catalogue."""
    behalf: str = ""


# -- asked of whoever leads


class Forward(_Message, frozen=True):
    """A client's request as it came. The answer's body is the reply's."""

    session: SessionState
    code: int
    partition: int = -1
    """Chosen by who passes it on, where the request leaves it open; -1 = as the request says."""
    number: int = -1
    """Of a numbered request (dialect C)."""


class OpenPlace(_Message, frozen=True):
    """Open the partition, and say how far it reaches (`PlaceState`)."""

    place: Place


class Publish(_Message, frozen=True):
    """Append staged messages of a window to a partition; the body is a batch of messages with its
    index. The answer (`Published`) comes when they are durable."""

    place: Place
    publisher: int
    window: int
    attempt: int
    messages: int


class BeginPublish(_Message, frozen=True):
    """An attempt to publish begins: none of the publisher's earlier ones appends from now on, and
    the answer (`PlaceState`) has what they appended."""

    place: Place
    publisher: int
    attempt: int


class SyncPlace(_Message, frozen=True):
    """Make everything that the partition holds durable."""

    place: Place


class Trim(_Message, frozen=True):
    """Forget whole segments below an offset."""

    place: Place
    offset: int


class Lowest(_Message, frozen=True):
    """The lowest offset that a consumer stored for each of these partitions (a list of numbers and
    nulls)."""

    places: list[Place]


# -- asked of every worker


class ForgetSession(_Message, frozen=True):
    """A session of dialect C is over, and its numbers begin anew."""

    number: int


class TakeLeft(_Message, frozen=True):
    """What a SEND was answered that a connection of the user's ended with; null when there was
    none, or it failed."""

    user_uid: int
    fingerprint: bytes


# -- asked of the coordinator


class Join(_Message, frozen=True):
    """A worker that follows: the coordinator knows it from now on. The answer is `Welcome`."""

    worker: str
    members: list[int]
    """Client ids of those members of groups that are connected to it."""


class Leave(_Message, frozen=True):
    """The worker stops: it takes no more shards, and gives back those that it leads."""


class Pulse(_Message, frozen=True):
    """Asked again and again by who follows: how far the catalogue goes (`PulseState`)."""


class Assign(_Message, frozen=True):
    """A partition has its SBP stream now; answered with the offset behind that event."""

    place: Place
    stream_id: int


class Gone(_Message, frozen=True):
    """A client left, and all its groups."""

    client_id: int


class Moved(_Message, frozen=True):
    """A member of groups is connected to whoever says this from now on."""

    client_id: int


# -- told to workers by others


class Ended(_Message, frozen=True):
    """A client that moved is gone: told to the worker that gave out its id."""

    client_id: int


# -- asked of workers by the coordinator


class Applied(_Message, frozen=True):
    """Answered once the catalogue's events below this offset are part of the worker's state."""

    offset: int


class Lead(_Message, frozen=True):
    """Take these shards, whose leases are free. Answered with the numbers of those it leads."""

    shards: list[int]
    offset: int
    """The catalogue's events below it must be known first."""
    clean: bool
    """Who led them before left everything acknowledged."""


class HandOver(_Message, frozen=True):
    """Finish what is under way in a shard and give its lease back; answered with whether nothing is
    left whose outcome is unknown."""

    shard: int


class Clients(_Message, frozen=True):
    """Who is connected to the worker (a list of `ClientState`)."""


class Figures(_Message, frozen=True):
    """How the worker does, and which shards it leads (`WorkerState`)."""


# -- told by the coordinator, again and again


class Leaders(_Message, frozen=True):
    """Which worker leads which shard; a shard that nobody leads has an empty name."""

    version: int
    workers: list[str]


class GroupMembers(_Message, frozen=True):
    """Members of every group."""

    version: int
    groups: list[GroupState]
    workers: list[tuple[int, str]]
    """Of each member, by its client id, the worker that it is connected to."""


# -- answers


class Answer(_Message, frozen=True):
    """0, or the status that a client gets."""

    status: int = 0


class NotLeading(_Message, frozen=True):
    """Nothing was done: another worker leads what the request is about."""


class Welcome(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    leaders: Leaders
    members: GroupMembers


class PulseState(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    """The catalogue's events below it, and no others, may have been acknowledged."""
    leaders: int
    """The version of `Leaders`; who knows another one joins again."""
    members: int
    """The same of `GroupMembers`."""


class PlaceState(msgspec.Struct, frozen=True, array_like=True):
    stream_id: int
    start: int
    committed: int


class Published(msgspec.Struct, frozen=True, array_like=True):
    first: int


class ClientState(msgspec.Struct, frozen=True, array_like=True):
    client_id: int
    address: str
    user_uid: int | None
    transport: int


class WorkerState(msgspec.Struct, frozen=True, array_like=True):
    figures: WorkerFigures
    epochs: dict[int, int]
    """Of the shards that it leads."""


Message: TypeAlias = (
    Forward
    | OpenPlace
    | Publish
    | BeginPublish
    | SyncPlace
    | Trim
    | Lowest
    | ForgetSession
    | TakeLeft
    | Join
    | Leave
    | Pulse
    | Assign
    | Gone
    | Moved
    | Ended
    | Applied
    | Lead
    | HandOver
    | Clients
    | Figures
    | Leaders
    | GroupMembers
    | Answer
    | NotLeading
)

encode = msgspec.msgpack.Encoder().encode
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)


def decode(head: bytes) -> Message:
    """msgspec.MsgspecError of what is none."""
    found: Message = _decoder.decode(head)
    return found
