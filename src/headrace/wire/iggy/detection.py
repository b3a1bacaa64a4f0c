"""Which classic dialect a request is written in, told by its shape alone.

Requests that differ between A and B are self-describing by length once the ids in front are read;
SEND tells 56-byte from 64-byte message headers. What a request cannot tell is how a *reply* must
look, so a session keeps a dialect: from the login's version, else narrowed by what requests show
(`candidates`), else the configured default.

A request that fits neither shape to the byte (decoders tolerate trailing ones) says nothing.
"""

from __future__ import annotations

from headrace.wire.iggy.batch import HEADER_BYTES, INDEX_ENTRY_BYTES, NARROW_HEADER_BYTES
from headrace.wire.iggy.dialects import CLASSIC, Dialect
from headrace.wire.iggy.errors import DecodeError
from headrace.wire.iggy.fields import U32_LAYOUT, Buffer, Reader

_B = frozenset((Dialect.B1, Dialect.B2))
_A = frozenset((Dialect.A,))
_WIDE = frozenset((Dialect.B2,))
_NARROW = frozenset((Dialect.A, Dialect.B1))

_CONSUMER_COMMANDS = {100: 18, 120: 4, 121: 12, 122: 4}  # bytes after the ids in A; B has one more
_NAMED = {202: (0, 0), 302: (1, 22), 602: (2, 0)}  # ids in front, bytes between them and name in B
_A_ID_BYTES = 4  # what A has more in each of these


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
            return _by_name(reader, before_name)
        if code == 101:
            return _by_message(reader)
    except DecodeError:
        pass  # the codec will say what is wrong
    return CLASSIC


def _skip_identifiers(reader: Reader, count: int) -> None:
    for _ in range(count):
        reader.take(1)
        reader.take(reader.u8())


def _by_name(reader: Reader, before_name: int) -> frozenset[Dialect]:
    rest = reader.take(reader.remaining)
    fits = [
        dialects
        for dialects, at in ((_B, before_name), (_A, before_name + _A_ID_BYTES))
        if len(rest) > at and len(rest) == at + 1 + rest[at]
    ]
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
