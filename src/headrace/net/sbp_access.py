"""Who may ask a placement manager or a data node what.

| Peer | May |
|---|---|
| in this process, or with the node credential | everything |
| with a read ticket | what reads the streams on the ticket, until it expires |
| anybody, on loopback with `plain_streams` | what uses plain streams, never the cluster's own |
| anybody else | PING, HEARTBEAT |

Without a cluster secret nothing can be proved and everybody counts as a node.
"""

from __future__ import annotations

from headrace.errors import UnauthenticatedError, UnauthorizedError
from headrace.net.credentials import NodeCredential, Ticket
from headrace.net.sbp_server import Peer, Standing
from headrace.runtime.interfaces import Clock
from headrace.wire.sbp.opcodes import Code, Opcode, Role

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


class Access:
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
