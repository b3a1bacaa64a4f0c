"""Which dialect one connection speaks, as far as it has shown: events in, a dialect out.

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

from headrace.wire.iggy.dialects import CLASSIC, Dialect, Stated

PING_SECONDS = 4.0
"""The Rust crate sends a PING when it is connected, other SDKs first after 5 seconds."""

_NEWEST_FIRST = (Dialect.B2, Dialect.B1, Dialect.A)


@dataclass(slots=True)
class Spoken:
    """Mutate only through the on_* methods."""

    default: Dialect
    dialect: Dialect = field(init=False)
    """What to decode requests and encode replies in."""
    possible: frozenset[Dialect] = CLASSIC
    _pinged: bool = False
    _stated: Stated | None = None
    _delayed: bool = False

    def __post_init__(self) -> None:
        self.dialect = self.default

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

    def on_version(self, stated: Stated) -> None:
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
        self._settle()

    def on_hint(self, candidates: frozenset[Dialect]) -> None:
        self.possible = self.possible & candidates or self.possible
        self._settle()

    def _settle(self) -> None:
        if self.dialect in self.possible:
            return
        choice = (self.default, *_NEWEST_FIRST)
        self.dialect = next(dialect for dialect in choice if dialect in self.possible)
