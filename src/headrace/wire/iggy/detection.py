"""Which dialect a connection speaks, as far as it has shown: requests and events in, a dialect out.

A classic request tells its dialect by its shape alone (`candidates`). Requests that differ between
A and B are self-describing by length once the ids in front are read; SEND tells 56-byte from
64-byte message headers. A request that fits no shape to the byte (decoders tolerate trailing ones),
or two, says nothing.

What a request cannot tell is how a *reply* must look, so a connection keeps a dialect
(`SpokenDialect`):

| Event                                        | What is known afterwards                         |
|----------------------------------------------|--------------------------------------------------|
| it opens                                     | nothing; the configured default is assumed       |
| its first bytes are dialect C's framing      | that, for good: nothing else is framed like it   |
| a login states a version we know             | that dialect, whatever was known before; two of  |
|                                              | them where the Rust crate of that version speaks |
|                                              | another one than the SDKs of that release        |
| a PING in its first seconds                  | that it is the crate: others send none so soon   |
| a poll, with two possible and no such PING   | that it is another SDK (see `on_poll`)           |
| a login says nothing (a token, Node's SDK)   | no more than before; what this user spoke last   |
|                                              | is assumed instead of the default                |
| a request has the shape of some dialects     | those of them still possible; if none of them is |
|                                              | (the peer changed, or stated something else than |
|                                              | it speaks), exactly those: requests beat words   |
| a command that only some dialects' SDKs use  | those of them still possible, if any is          |

Of the dialects still possible the one assumed so far stays; else the configured default is taken,
else the newest. So a client that says nothing is answered in the right dialect from the first
request on that shows it, and only what was asked before that may have been misunderstood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.wire.iggy.batch import HEADER_BYTES, INDEX_ENTRY_BYTES, NARROW_HEADER_BYTES
from headrace.wire.iggy.dialects import CLASSIC, Dialect, StatedDialects
from headrace.wire.iggy.errors import DecodeError
from headrace.wire.iggy.fields import U32_LAYOUT, Buffer, Reader
from headrace.wire.iggy.messages.topics import is_published_form

_B = frozenset((Dialect.B1, Dialect.B2))
_A = frozenset((Dialect.A,))
_WIDE = frozenset((Dialect.B2,))
_NARROW = frozenset((Dialect.A, Dialect.B1))

_SEND = 101
_CREATE_TOPIC = 302
_CONSUMER_COMMANDS = {100: 18, 120: 4, 121: 12, 122: 4}  # bytes after the ids in A; B has one more
_NAMED = {202: (0, 0), 302: (1, 22), 602: (2, 0)}  # ids in front, bytes between them and name in B
_A_ID_BYTES = 4  # what A has more in each of these

DIALECT_SPECIFIC = frozenset((_SEND, *_CONSUMER_COMMANDS, *_NAMED))
"""Codes of the requests that may show their dialect."""

_CLUSTER_METADATA = 12
_FIRST_EXTENSION = 9000


def candidates(code: int, payload: Buffer) -> frozenset[Dialect]:
    """The classic dialects this request may be written in; all of them when it does not show."""
    reader = Reader(payload, Dialect.B2)
    try:
        if code in _CONSUMER_COMMANDS:
            reader.take(1)
            _skip_identifiers(reader, 3)
            return {0: _A, 1: _B}.get(reader.remaining - _CONSUMER_COMMANDS[code], CLASSIC)
        if code in _NAMED:
            identifiers, before_name = _NAMED[code]
            _skip_identifiers(reader, identifiers)
            rest = reader.take(reader.remaining)
            return _by_name(rest, before_name, published=code == _CREATE_TOPIC)
        if code == _SEND:
            return _by_message(reader)
    except DecodeError:
        pass  # the codec will say what is wrong
    return CLASSIC


def hint(code: int) -> frozenset[Dialect]:
    """Who usually sends this command. Weaker than a shape: it never contradicts what is known.

    SDKs of B ask for the cluster's metadata by themselves after each login, those of A do not.
    Our own commands come from programs written for Headrace, which speak B2.
    """
    if code >= _FIRST_EXTENSION:
        return _WIDE
    return _B if code == _CLUSTER_METADATA else CLASSIC


def _skip_identifiers(reader: Reader, count: int) -> None:
    for _ in range(count):
        reader.take(1)
        reader.take(reader.u8())


def _by_name(rest: memoryview, before_name: int, *, published: bool) -> frozenset[Dialect]:
    fits = [
        dialects
        for dialects, at in ((_B, before_name), (_A, before_name + _A_ID_BYTES))
        if len(rest) > at and len(rest) == at + 1 + rest[at]
    ]
    if published and is_published_form(rest):
        fits.append(_A)
    return fits[0] if len(fits) == 1 else CLASSIC


def _by_message(reader: Reader) -> frozenset[Dialect]:
    metadata_bytes = reader.u32()
    reader.take(max(0, metadata_bytes - U32_LAYOUT.size))
    count = reader.u32()
    index = reader.take(count * INDEX_ENTRY_BYTES)
    if count == 0:
        return CLASSIC
    first = Reader(index, Dialect.B2, 4)
    end = first.u32() or first.u32()  # the second is where the published description has it
    message = reader.take(NARROW_HEADER_BYTES)
    lengths = Reader(message, Dialect.B2, 48)
    header_bytes = end - lengths.u32() - lengths.u32()
    return {HEADER_BYTES: _WIDE, NARROW_HEADER_BYTES: _NARROW}.get(header_bytes, CLASSIC)


PING_SECONDS = 4.0
"""The Rust crate sends a PING when it is connected, other SDKs first after 5 seconds."""

_NEWEST_FIRST = (Dialect.B2, Dialect.B1, Dialect.A)


class SpokenState(NamedTuple):
    """All that is known of a connection's dialect, for whoever goes on with the connection."""

    default: Dialect
    dialect: Dialect
    possible: tuple[Dialect, ...]
    pinged: bool
    stated: StatedDialects | None
    delayed: bool


@dataclass(slots=True)
class SpokenDialect:
    """The dialect of one connection. Mutate only through the on_* methods."""

    default: Dialect
    dialect: Dialect = field(init=False)
    """What to decode requests and encode replies in."""
    possible: frozenset[Dialect] = CLASSIC
    _pinged: bool = False
    _stated: StatedDialects | None = None
    _delayed: bool = False

    def __post_init__(self) -> None:
        self.dialect = self.default

    @classmethod
    def of(cls, state: SpokenState) -> SpokenDialect:
        spoken = cls(
            state.default, frozenset(state.possible), state.pinged, state.stated, state.delayed
        )
        spoken.dialect = state.dialect
        return spoken

    def state(self) -> SpokenState:
        possible = tuple(each for each in Dialect if each in self.possible)
        return SpokenState(
            self.default, self.dialect, possible, self._pinged, self._stated, self._delayed
        )

    @property
    def known(self) -> bool:
        """Whether the peer has shown anything at all."""
        return self.possible != CLASSIC

    @property
    def undecided(self) -> bool:
        """Whether the stated version leaves open what a polled message looks like."""
        return self._stated is not None and len(self.possible) > 1

    def on_framing(self) -> None:
        self.on_dialect(Dialect.C)

    def on_dialect(self, dialect: Dialect) -> None:
        self.possible = frozenset((dialect,))
        self.dialect = dialect
        self._stated = None

    def on_version(self, stated: StatedDialects) -> None:
        first = stated.crate or stated.release
        assert first is not None
        self.on_dialect(first)
        if not self._pinged:
            self._stated = stated
            self.possible = stated.possible

    def on_ping(self, *, early: bool) -> None:
        """`early`: within `PING_SECONDS` of the connection's begin."""
        self._pinged = self._pinged or early
        if early and self.undecided and self._stated is not None and self._stated.crate:
            self.on_dialect(self._stated.crate)

    def on_poll(self, *, nobody: bool) -> bool:
        """Whether it can be answered with messages; else with none, which everybody can read.

        The crate may send its first poll before its first PING, but no second one. Python's poll
        names no consumer (`nobody`) where others mostly do; so only such a poll is asked for twice.
        """
        if not self.undecided or self._stated is None or self._stated.release is None:
            return True
        if nobody and not self._delayed:
            self._delayed = True
            return False
        self.on_dialect(self._stated.release)
        return True

    def on_silent_login(self, remembered: Dialect | None) -> None:
        if not self.known:
            self.dialect = self.default if remembered is None else remembered

    def on_shape(self, candidates: frozenset[Dialect]) -> None:
        self.possible = self.possible & candidates or candidates
        self._choose()

    def on_hint(self, candidates: frozenset[Dialect]) -> None:
        self.possible = self.possible & candidates or self.possible
        self._choose()

    def _choose(self) -> None:
        if self.dialect in self.possible:
            return
        choice = (self.default, *_NEWEST_FIRST)
        self.dialect = next(dialect for dialect in choice if dialect in self.possible)
