"""The dialects of Iggy's protocol, and how to tell them apart on one port.

| Dialect | Python client | Framing   | Message header | Ids from | User header keys |
|---------|---------------|-----------|----------------|----------|------------------|
| A       | 0.5.0         | classic   | 56             | 1        | text             |
| B1      | 0.6.0         | classic   | 56             | 0        | text             |
| B2      | 0.7.0, 0.8.0  | classic   | 64             | 0        | typed            |
| C       | 0.9.0         | 256 bytes | 48, in batches | 0        | typed            |

Inside Headrace there is one canonical form, B2's: ids from 0, 64-byte message headers, typed keys.
Codecs of the other dialects translate at this border. What servers of an era *did* differently is
the broker's business (`broker/sessions/sessions.py`), which dialect a connection speaks is told by
`detection.py`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Dialect(Enum):
    A = "A"
    B1 = "B1"
    B2 = "B2"
    C = "C"

    __hash__ = object.__hash__  # Enum's own is a call into Python, several for each request

    id_base: int
    """What the first stream, topic, group, partition and user is called on the wire."""
    header_bytes: int
    """Size of a message header in SEND requests and POLL replies of classic framing."""
    typed_header_keys: bool

    def __init__(self, name: str) -> None:
        self.id_base = 1 if name == "A" else 0
        self.header_bytes = 64 if name == "B2" else 56
        self.typed_header_keys = name in ("B2", "C")


CLASSIC = frozenset((Dialect.A, Dialect.B1, Dialect.B2))

# The version string of LOGIN_USER is that of the Rust crate in the Rust SDK and all that are built
# on it (Python, C++), but the SDK's own release in others (Go, C#); Node and Java state none. The
# two count differently: Python 0.6.0 and Go 0.8.0 log in with the same bytes.
_CRATES = {"0.7": Dialect.A, "0.8": Dialect.B1, "0.9": Dialect.B2, "0.10": Dialect.B2}
_RELEASES = {"0.5": Dialect.A, "0.6": Dialect.B1, "0.7": Dialect.B2, "0.8": Dialect.B2}


class StatedDialects(NamedTuple):
    """What the version at a login means: as the Rust crate's, and as another SDK's own."""

    crate: Dialect | None
    release: Dialect | None

    @property
    def possible(self) -> frozenset[Dialect]:
        return frozenset(dialect for dialect in self if dialect is not None)


def of_version(version: str) -> StatedDialects | None:
    """What a client may speak that gave this version at login; None when it says nothing."""
    minor = ".".join(version.split(".")[:2])
    stated = StatedDialects(_CRATES.get(minor), _RELEASES.get(minor))
    return stated if stated.possible else None
