"""Where opcodes meet handlers, for TCP and in-process callers alike, and who may call them.

`Routes` has the handlers of a role, `Peer` says who calls, and `Access` decides what that peer may
ask a placement manager or a data node:

| Peer | May |
|---|---|
| in this process, or with the node credential | everything |
| with a read ticket | what reads the streams on the ticket, until it expires |
| anybody, on loopback with `plain_streams` | what uses plain streams, never the cluster's own |
| anybody else | PING, HEARTBEAT |

Without a cluster secret nothing can be proved and everybody counts as a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from inspect import iscoroutinefunction
from typing import Protocol, TypeAlias

import msgspec

from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.net.credentials import NodeCredential, Ticket, verify
from headrace.net.flow import Gate
from headrace.runtime.interfaces import Buffer, Clock
from headrace.wire.sbp.messages import ClientRole, HeartbeatRequest, Message
from headrace.wire.sbp.opcodes import TABLE, Code, Opcode, Role

Payload: TypeAlias = Sequence[Buffer]
"""Pieces; a request over TCP has one or none, in process they are what the caller gave."""

READS = frozenset({Code.FETCH, Code.LIST_RANGES, Code.DESCRIBE_STREAMS})
"""Work that nobody needs when nobody waits for its answer."""

_OWN = frozenset({Code.PING, Code.GOAWAY})  # served by the connection itself


@dataclass(slots=True)
class Peer:
    """Who is at the other end of a connection; HEARTBEAT fills it in."""

    address: str = ""
    in_process: bool = False
    role: ClientRole = ClientRole.UNSPECIFIED
    client_id: str = ""
    node_id: int = -1
    credential: object | None = None
    """A NodeCredential or Ticket once one was verified."""
    reply_gate: Gate | None = None
    """Bounds what was read for this peer and not yet taken by it; None inside a process."""


class Reply(msgspec.Struct, frozen=True):
    message: Message
    payload: Payload = ()
    last: bool = False
    """Whether nothing follows, of several replies. Without it an empty frame has to say so."""
    held: int = 0
    """Bytes that the handler has entered in the peer's gate for this; whoever sends it leaves."""


Handler: TypeAlias = Callable[[Message, Payload, Peer], Awaitable[Reply | AsyncIterator[Reply]]]
"""Raises HeadraceError for a system error. Several replies are sent as they come, as one answer."""


@dataclass(frozen=True, slots=True)
class Route:
    opcode: Opcode
    handler: Handler
    at_once: bool = False
    """The handler is no coroutine: what it does, it does when it is called, and its one reply is a
    future. It needs no task, and keeps the request's deadline by itself."""


class LocalNode(Protocol):
    """The hot half of a data node for callers in its process: APPEND and FETCH without messages,
    tasks and timers. Whoever uses it counts as holding the node credential."""

    def append(
        self,
        stream_id: int,
        range_index: int,
        *,
        writer_epoch: int,
        expected_offset: int,
        header: bytearray,
        body: Sequence[Buffer],
    ) -> asyncio.Future[None]:
        """Store one batch of an owned stream; the future is done when it is durable.

        Raises what APPEND would answer. Length and checksum must just have been computed: they are
        not looked at. The buffers belong to the node from now on.
        """
        ...

    def read_cached(
        self, stream_id: int, offset: int, max_bytes: int
    ) -> Sequence[Sequence[memoryview]]:
        """Whole batches as FETCH returns them, if they are in memory; otherwise none.

        Each is in one piece or in those of `append`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Routes:
    role: Role
    table: Mapping[int, Route] = field(default_factory=dict)
    local: LocalNode | None = None


def build_routes(
    role: Role, handlers: Mapping[int, Handler], local: LocalNode | None = None
) -> Routes:
    """RuntimeError unless the handlers are exactly those of the opcodes that the role serves."""
    served = {c: row for c, row in TABLE.items() if row.served_by & role and c not in _OWN}
    if served.keys() != handlers.keys():
        differing = sorted(f"0x{code:04x}" for code in served.keys() ^ handlers.keys())
        raise RuntimeError(f"routes out of step with the opcode table: {', '.join(differing)}")
    table = {
        code: Route(row, handlers[code], at_once=not iscoroutinefunction(handlers[code]))
        for code, row in served.items()
    }
    return Routes(role, table, local)


@asynccontextmanager
async def closing(replies: AsyncIterator[Reply]) -> AsyncIterator[AsyncIterator[Reply]]:
    """A handler's generator that is not read to its end is told so, and lets go what it holds."""
    try:
        yield replies
    finally:
        if isinstance(replies, AsyncGenerator):
            await replies.aclose()


def identify(peer: Peer, heartbeat: HeartbeatRequest, *, secret: bytes | None, now_ms: int) -> None:
    """Take over what a HEARTBEAT says. UnauthorizedError, and nothing changes, when it lies.

    An empty credential keeps the one proved before. Without a secret nothing can be proved: peers
    are then who they say they are and hold no credential.
    """
    proved = peer.credential
    if secret is not None and heartbeat.credential and not peer.in_process:
        proved = verify(secret, heartbeat.credential, now_ms)
    try:
        role = ClientRole(heartbeat.client_role)
    except ValueError:
        role = ClientRole.UNSPECIFIED  # a later version's; what it may do is decided elsewhere
    trusted = secret is None or peer.in_process or isinstance(proved, NodeCredential)
    if role in (ClientRole.DATA_NODE, ClientRole.PLACEMENT_MANAGER) and not trusted:
        raise UnauthorizedError("this role needs a node credential", role=role.name)
    peer.credential = proved
    peer.role = role
    peer.client_id = heartbeat.client_id
    peer.node_id = -1 if heartbeat.data_node is None else heartbeat.data_node.node_id


_FOR_ALL = frozenset({Code.PING, Code.GOAWAY, Code.HEARTBEAT})
_FOR_TICKETS = {
    Role.PLACEMENT_MANAGER: frozenset({Code.LIST_RANGES}),
    Role.DATA_NODE: frozenset({Code.FETCH, Code.DESCRIBE_RANGES}),
}
_FOR_PLAIN_STREAMS = {
    Role.PLACEMENT_MANAGER: frozenset(
        {
            Code.LIST_RANGES,
            Code.SEAL_RANGES,
            Code.DESCRIBE_RANGES,
            Code.CREATE_STREAMS,
            Code.DELETE_STREAMS,
            Code.UPDATE_STREAMS,
            Code.DESCRIBE_STREAMS,
            Code.TRIM_STREAMS,
        }
    ),
    Role.DATA_NODE: frozenset({Code.APPEND, Code.FETCH, Code.DESCRIBE_RANGES}),
}


class Standing(Enum):
    """What a peer has proved."""

    NODE = auto()
    READER = auto()  # by a ticket: it asks, and stores nothing
    GUEST = auto()  # nothing, and may use plain streams all the same
    STRANGER = auto()


class Access:
    """What peers of one role's port may do."""

    def __init__(
        self, clock: Clock, role: Role, *, secret: bytes | None, plain_streams: bool
    ) -> None:
        self._clock = clock
        self._for_tickets = _FOR_TICKETS[role]
        self._for_plain_streams = _FOR_PLAIN_STREAMS[role]
        self._open = secret is None
        self._plain_streams = plain_streams

    def is_node(self, peer: Peer) -> bool:
        return self._open or peer.in_process or isinstance(peer.credential, NodeCredential)

    def standing(self, peer: Peer) -> Standing:
        if self.is_node(peer):
            return Standing.NODE
        if isinstance(peer.credential, Ticket):
            return Standing.READER
        return Standing.GUEST if self._plain_streams else Standing.STRANGER

    def authorize(self, opcode: Opcode, peer: Peer) -> None:
        """Before the handler, which asks `check_stream` for each stream it touches."""
        if self.is_node(peer) or opcode.code in _FOR_ALL:
            return
        if isinstance(peer.credential, Ticket):
            if opcode.code not in self._for_tickets:
                raise UnauthorizedError("a read ticket does not allow this", operation=opcode.name)
        elif not self._plain_streams:
            raise UnauthenticatedError("credential needed", operation=opcode.name)
        elif opcode.code not in self._for_plain_streams:
            raise UnauthorizedError("for nodes of the cluster only", operation=opcode.name)

    def check_stream(self, peer: Peer, stream_id: int, *, owned: bool) -> None:
        if self.is_node(peer) or self.is_on_ticket(peer, stream_id):
            return
        if owned:
            raise UnauthorizedError("the stream belongs to the cluster", stream_id=stream_id)

    def is_on_ticket(self, peer: Peer, stream_id: int) -> bool:
        """False without a ticket; UnauthorizedError, whether the stream exists or not, when it is
        not on the one shown."""
        if not isinstance(peer.credential, Ticket):
            return False
        if not peer.credential.allows(stream_id, self._clock.now_ms()):
            raise UnauthorizedError("not on the ticket, or expired", stream_id=stream_id)
        return True
