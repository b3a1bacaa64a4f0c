"""Options of streams, topics and users (dialect C): entries like user headers, with text keys.

In requests they are what is left of the body, in replies a block with its length in front. Other
dialects have none: there they read as empty and are not written.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from headrace.wire.iggy.dialects import Dialect
from headrace.wire.iggy.errors import DecodeError, Status
from headrace.wire.iggy.fields import U32_LAYOUT, Codec, Reader, Writer
from headrace.wire.iggy.user_headers import HeaderKind, UserHeader, decode_headers, encode_headers

OPTIONS_BYTES_MAX = 16 * 1024

Options: TypeAlias = tuple[UserHeader, ...]


def decode_options(data: bytes | memoryview) -> Options:
    if len(data) > OPTIONS_BYTES_MAX:
        raise DecodeError(Status.OPTIONS_BLOCK_TOO_LARGE, length=len(data))
    options = decode_headers(data, Dialect.C)
    for option in options:
        if option.key_kind is not HeaderKind.STRING:
            raise DecodeError(Status.INVALID_HEADER_KEY, "an option's key is text")
    return options


def encode_options(options: Options) -> bytes:
    return encode_headers(options, Dialect.C)


def _read_rest(reader: Reader) -> Options:
    if reader.dialect is not Dialect.C:
        return ()
    return decode_options(reader.take(reader.remaining))


def _write_rest(writer: Writer, options: Options) -> None:
    if writer.dialect is Dialect.C:
        writer += encode_options(options)


def _read_block(reader: Reader) -> Options:
    if reader.dialect is not Dialect.C:
        return ()
    return decode_options(reader.take(reader.u32()))


def _write_block(writer: Writer, options: Options) -> None:
    if writer.dialect is Dialect.C:
        block = encode_options(options)
        writer.number(U32_LAYOUT, len(block))
        writer += block


OptionsToEnd: TypeAlias = Annotated[Options, Codec(_read_rest, _write_rest)]
OptionsBlock: TypeAlias = Annotated[Options, Codec(_read_block, _write_block)]
