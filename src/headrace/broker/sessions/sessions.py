"""Client connections: who they are, how they speak, what they joined.

`RULES` says what servers of one era answer differently from those of another, one row per dialect.
Bytes differ in the codecs, numbers of refusals in `wire/iggy/refusals.py`; a row says what the same
request *means*. A client gets the behaviour of the server that its SDK was written against.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING

import xxhash

from headrace.broker.shards.moving import Trail
from headrace.net.credentials import Grant
from headrace.wire.iggy.detection import PING_SECONDS, SpokenDialect
from headrace.wire.iggy.dialects import Dialect, StatedDialects
from headrace.wire.iggy.messages.system import TransportKind

if TYPE_CHECKING:
    from headrace.broker.partitions.offsets import Place, Reader
    from headrace.broker.partitions.partition import PartitionLog
    from headrace.broker.poll.held_polls import HeldPoll
    from headrace.broker.sessions.request_dedup import RequestOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a server of one dialect answers differently from the others."""

    hides_forbidden: bool
    """What a user may not see looks as if it did not exist (GET of one thing)."""
    lists_need_parent: bool
    """Listing topics or groups of something missing is an error, not an empty list."""
    polls_need_count: bool
    """A poll of no messages is an error, not an empty reply."""
    removes_what_exists: bool
    """Deleting more partitions than exist deletes all, instead of being refused."""
    members_poll_any: bool
    """A group member may poll a partition that is another member's, if it says which."""
    refuses_unowned: bool = False
    """A poll of another member's partition is an error, not empty: the member asks for its own."""
    login_token: bool
    """A login is answered with an access token behind the user's id."""


_B1 = Rules(
    hides_forbidden=True,
    lists_need_parent=False,
    polls_need_count=False,
    removes_what_exists=False,
    members_poll_any=False,
    login_token=False,
)
_B2 = Rules(
    hides_forbidden=False,
    lists_need_parent=False,
    polls_need_count=False,
    removes_what_exists=False,
    members_poll_any=False,
    login_token=False,
)
RULES: dict[Dialect, Rules] = {
    Dialect.A: Rules(
        hides_forbidden=True,
        lists_need_parent=True,
        polls_need_count=True,
        removes_what_exists=True,
        members_poll_any=True,
        login_token=True,
    ),
    Dialect.B1: _B1,
    Dialect.B2: _B2,
    Dialect.C: replace(_B2, refuses_unowned=True),
}

_REMEMBERED_MAX = 10_000
_AWAY_MAX = 1 << 16
_WORKER_BIT = 25
"""Of a client id: the bits from here on are the number of the worker that gave it out, up to 127.
The client may be with another one by now."""


class Login(Enum):
    """How the user was named, and so what the login said about the dialect."""

    VERSION = "version"  # name and password with the SDK's version
    SILENT = "silent"  # name and password alone: Node's SDK
    TOKEN = "token"  # a token says nothing about who holds it
    SERVICE = "service"  # our own controller: see `authorization.py`
    GRANT = "grant"  # a container of a pipeline, or a task of one


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


@dataclass(slots=True, eq=False)
class Session:
    """One connection. Logging in again replaces the user; logging out keeps the connection."""

    client_id: int
    address: str
    spoken: SpokenDialect
    user_uid: int | None = None
    grant: Grant | None = None
    """What the user may do who is logged in with one, and no user of the catalogue."""
    presented: Grant | None = None
    """What the next login may refer to."""
    login: Login = Login.SILENT
    transport: TransportKind = TransportKind.TCP
    opened: float = 0.0
    """Monotonic time of the connection's begin."""
    seen: float = 0.0
    """Monotonic time of the last PING, or of the connection's begin."""
    last_poll: tuple[Dialect, bytes] | None = None
    """Bytes of the last POLL but for its tail: another one like it shows nothing new."""
    known_poll: KnownPoll | None = None
    """What that POLL meant; see `handlers/messages.py`."""
    client: bytes = b""
    """What a client of dialect C calls itself; it keeps the name when it connects again."""
    number: int = 0
    """The number of the session in dialect C; 0 before the login."""
    last_send: RequestOutcome | None = None
    """What became of the last request, if that was a SEND in dialect C."""
    has_sent: bool = False
    """Whether there was a numbered SEND."""
    last_request: int = 0
    """The number of the last request that was not answered at once; with the client id it names
    a request in logs."""
    login_failures: int = 0
    """Failed logins and refusals since the session last logged in."""
    behalf: str = ""
    """The host that it speaks for, where our own control plane passes on what a browser said."""
    held_polls: set[HeldPoll] = field(default_factory=set)
    """Those of its polls that wait, and a task with each of them."""
    is_pressed: bool = False
    """Another request waits for the one in progress: a poll that finds nothing is not held."""
    held_seconds: float = 0.0
    """How long polls waited in the request in progress: that is no work."""
    stale: bool = False
    """Whether the client was silent for too long: its groups went on without it."""
    via: str = ""
    """The worker that the client is connected to, where that is another one and its request was
    passed on."""
    home: str = ""
    """The worker that gave out the client id, where that is another one and the client moved."""
    trail: Trail | None = None
    """Where its requests go, of a connection that may move to another worker."""
    keeps_login: bool = False
    """It is changing its user's password, which ends the user's other logins."""

    @property
    def dialect(self) -> Dialect:
        return self.spoken.dialect

    @property
    def rules(self) -> Rules:
        return RULES[self.spoken.dialect]

    @property
    def host(self) -> str:
        return self.behalf or self.address.rpartition(":")[0]


class DialectMemory:
    """What users were last known to speak, for logins that do not say. Lost at a restart.

    Silent logins go by silent ones alone: a user's Node programs tell nothing about its Python
    programs, whose version is stated, nor the other way round. A token may be in anybody's hands.
    """

    def __init__(self) -> None:
        self._any: dict[int, Dialect] = {}
        self._silent: dict[int, Dialect] = {}

    def learn(self, session: Session) -> None:
        if session.user_uid is None or not session.spoken.known or session.spoken.undecided:
            return
        if session.login in (Login.SERVICE, Login.GRANT) or session.dialect is Dialect.C:
            return  # dialect C is told by its framing: nobody else may be taken for it
        _put(self._any, session.user_uid, session.dialect)
        if session.login is Login.SILENT:
            _put(self._silent, session.user_uid, session.dialect)

    def recall(self, user_uid: int, login: Login) -> Dialect | None:
        return (self._silent if login is Login.SILENT else self._any).get(user_uid)


def _put(memory: dict[int, Dialect], user_uid: int, dialect: Dialect) -> None:
    memory.pop(user_uid, None)  # the newest stand last
    memory[user_uid] = dialect
    if len(memory) > _REMEMBERED_MAX:
        del memory[next(iter(memory))]


class Sessions:
    def __init__(self) -> None:
        self._sessions: dict[int, Session] = {}
        self.worker: int | None = None
        """This worker's number in its cluster, so that no two workers give out one client id."""
        self.is_member: Callable[[int], bool] = lambda _: False
        """Whether a client of that id, wherever it is connected, is in a group."""
        self._away: OrderedDict[int, None] = OrderedDict()
        """Ids given out here whose clients are with other workers, as far as known."""
        self.dialects = DialectMemory()

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, client_id: int) -> Session | None:
        return self._sessions.get(client_id)

    def open(
        self,
        address: str,
        dialect: Dialect,
        now: float,
        transport: TransportKind = TransportKind.TCP,
    ) -> Session:
        """`dialect` is assumed until the client shows another."""
        client_id = self._numbered(xxhash.xxh32_intdigest(address.encode()))
        # Two addresses with one hash are rare, but a group must not take them for one member.
        while client_id == 0 or self._is_taken(client_id):
            client_id = self._numbered(client_id + 1)
        session = Session(
            client_id, address, SpokenDialect(dialect), opened=now, seen=now, transport=transport
        )
        self._sessions[client_id] = session
        return session

    def _is_taken(self, client_id: int) -> bool:
        return client_id in self._sessions or client_id in self._away or self.is_member(client_id)

    def _numbered(self, drawn: int) -> int:
        if self.worker is None:
            return drawn & 0xFFFF_FFFF
        return (self.worker + 1) << _WORKER_BIT | drawn & ((1 << _WORKER_BIT) - 1)

    def close(self, session: Session) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    # -- clients that move from one worker to another

    def give_away(self, session: Session) -> None:
        """Another worker has the session. Its id stays taken, if it was given out here."""
        self.close(session)
        if not session.home:
            self._away[session.client_id] = None
            if len(self._away) > _AWAY_MAX:
                self._away.popitem(last=False)

    def take(self, session: Session) -> None:
        """The session was another worker's."""
        self.on_ended(session.client_id)
        self._sessions[session.client_id] = session
        self.dialects.learn(session)

    def on_ended(self, client_id: int) -> None:
        """The client is gone, or here again."""
        self._away.pop(client_id, None)

    # -- how they speak

    def on_login(
        self, session: Session, user_uid: int, login: Login, stated: Dialect | StatedDialects | None
    ) -> None:
        """Call once the login is right: `user_uid` may be what the session had before."""
        session.user_uid, session.login = user_uid, login
        if isinstance(stated, StatedDialects):
            session.spoken.on_version(stated)
        elif stated is not None:
            session.spoken.on_dialect(stated)
        else:
            session.spoken.on_silent_login(self.dialects.recall(user_uid, login))
        self.dialects.learn(session)

    def on_ping(self, session: Session, now: float) -> None:
        session.seen = now
        if session.dialect is not Dialect.C:
            session.spoken.on_ping(early=now - session.opened < PING_SECONDS)
            self.dialects.learn(session)

    def on_poll(self, session: Session, *, nobody: bool) -> bool:
        """Whether the session's dialect is known well enough for a reply with messages."""
        readable = session.spoken.on_poll(nobody=nobody)
        self.dialects.learn(session)
        return readable

    def on_shape(self, session: Session, candidates: frozenset[Dialect]) -> None:
        session.spoken.on_shape(candidates)
        self.dialects.learn(session)

    def on_hint(self, session: Session, candidates: frozenset[Dialect]) -> None:
        session.spoken.on_hint(candidates)
