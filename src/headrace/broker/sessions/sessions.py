"""Client connections: who they are, how they speak, what they joined."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import xxhash

from headrace.broker.sessions.dialect_rules import RULES, Rules
from headrace.net.credentials import Grant
from headrace.wire.iggy.detection import PING_SECONDS, Spoken
from headrace.wire.iggy.dialects import Dialect, Stated
from headrace.wire.iggy.messages.system import TransportKind

if TYPE_CHECKING:
    from headrace.broker.partitions.offsets import Place, Reader
    from headrace.broker.partitions.partition import PartitionLog
    from headrace.broker.sessions.request_dedup import Applying

_REMEMBERED_MAX = 10_000


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
    spoken: Spoken
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
    """Of the last PING, or of the connection's begin."""
    last_poll: tuple[Dialect, bytes] | None = None
    """Bytes of the last POLL but for its tail: another one like it shows nothing new."""
    known_poll: KnownPoll | None = None
    """What that POLL meant; see `handlers/messages.py`."""
    client: bytes = b""
    """What a client of dialect C calls itself; it keeps the name when it connects again."""
    number: int = 0
    """Of its session in that dialect; 0 before the login."""
    last_send: Applying | None = None
    """Its last request, if that was a SEND in dialect C."""
    last_request: int = 0
    """The number of its last request that was not answered at once; with the client id it names
    a request in logs."""
    login_failures: int = 0
    """And refusals, since it last logged in."""
    behalf: str = ""
    """The host that it speaks for, where our own control plane passes on what a browser said."""
    stale: bool = False
    """It was silent for too long: its groups went on without it."""

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
        client_id = xxhash.xxh32_intdigest(address.encode())
        # Two addresses with one hash are rare, but a group must not take them for one member.
        while client_id == 0 or client_id in self._sessions:
            client_id = (client_id + 1) & 0xFFFF_FFFF
        session = Session(
            client_id, address, Spoken(dialect), opened=now, seen=now, transport=transport
        )
        self._sessions[client_id] = session
        return session

    def close(self, session: Session) -> None:
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    # -- how they speak

    def on_login(
        self, session: Session, user_uid: int, login: Login, stated: Dialect | Stated | None
    ) -> None:
        """Call once the login is right: `user_uid` may be what the session had before."""
        session.user_uid, session.login = user_uid, login
        if isinstance(stated, Stated):
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
