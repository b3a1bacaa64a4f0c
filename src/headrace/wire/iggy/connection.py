"""Which dialect one connection speaks, as far as it has shown: events in, a dialect out.

| Event                                        | What is known afterwards                         |
|----------------------------------------------|--------------------------------------------------|
| it opens                                     | nothing; the configured default is assumed       |
| its first bytes are dialect C's framing      | that, for good: nothing else is framed like it   |
| a login states a version we know             | that dialect, whatever was known before          |
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

from headrace.wire.iggy.dialects import CLASSIC, Dialect

_NEWEST_FIRST = (Dialect.B2, Dialect.B1, Dialect.A)


@dataclass(slots=True)
class Spoken:
    """Mutate only through the on_* methods."""

    default: Dialect
    dialect: Dialect = field(init=False)
    """What to decode requests and encode replies in."""
    possible: frozenset[Dialect] = CLASSIC

    def __post_init__(self) -> None:
        self.dialect = self.default

    @property
    def known(self) -> bool:
        """Whether the peer has shown anything at all."""
        return self.possible != CLASSIC

    def on_framing(self) -> None:
        self.on_version(Dialect.C)

    def on_version(self, dialect: Dialect) -> None:
        self.possible = frozenset((dialect,))
        self.dialect = dialect

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
