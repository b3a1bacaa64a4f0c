"""Coverage-guided fuzzing of every decoder: `python -m tests.fuzz.decoders NAME SECONDS CORPUS`.

Each target takes any bytes and must give a value or a RemoteProtocolError; anything else ends the
run with the input that caused it. Memory is bounded by libFuzzer's own limit.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from contextlib import suppress

import atheris
import xxhash

with atheris.instrument_imports(include=["headrace"]):
    from headrace.errors import RemoteProtocolError, UnauthenticatedError
    from headrace.wire.iggy import batch
    from headrace.wire.iggy import classic_frames as iggy_frames
    from headrace.wire.iggy.commands import TABLE as COMMANDS
    from headrace.wire.iggy.dialects import CLASSIC, Dialect
    from headrace.wire.iggy.messages.messages import decode_messages
    from headrace.wire.iggy.primitives import decode_options
    from headrace.wire.iggy.request_stream import RequestStream
    from headrace.wire.iggy.user_headers import decode_headers
    from headrace.wire.iggy.vsr import batch as vsr_batch
    from headrace.wire.iggy.vsr import frames as vsr
    from headrace.wire.iggy.vsr import reply as vsr_reply
    from headrace.wire.iggy.vsr.client import VsrReplyDecoder
    from headrace.wire.peer import frames as peer_frames
    from headrace.wire.peer.login import decode_hello
    from headrace.wire.sbp import flat, records
    from headrace.wire.sbp import frames as sbp_frames
    from headrace.wire.sbp.opcodes import TABLE as OPCODES
    from headrace.wire.umbilical import codec, rpc, sasl, tokens
    from headrace.wire.umbilical.messages import FIELD_GROUPS

RSS_MIB_MAX = 1024


def iggy_requests(data: bytes) -> None:
    decoder = iggy_frames.RequestDecoder()
    for event in decoder.feed(data):
        if isinstance(event, iggy_frames.RequestFrame) and event.code in COMMANDS:
            for dialect in CLASSIC:
                with suppress(RemoteProtocolError):
                    COMMANDS[event.code].decode_request(event.payload, dialect)


_PREFIX = bytes(48) + (1 << 16).to_bytes(4, "little") + bytes(8) + bytes((vsr.REQUEST,))


def iggy_requests_c(data: bytes) -> None:
    """Bytes as they are; behind the start of a header; and as the body of every command."""
    for stream in (data, _PREFIX + data):
        for event in RequestStream().feed(stream):
            if isinstance(event, iggy_frames.RequestFrame) and event.code in COMMANDS:
                with suppress(RemoteProtocolError):
                    COMMANDS[event.code].decode_request(event.payload, Dialect.C)
    for command in COMMANDS.values():
        with suppress(RemoteProtocolError):
            command.decode_request(data, Dialect.C)
    with suppress(RemoteProtocolError):
        VsrReplyDecoder().feed(data)


def iggy_batches_c(data: bytes) -> None:
    """Batches whose outermost checksum and lengths are right, so that what is inside is read."""
    if len(data) < 2:
        return
    count = data[0] % 40
    for body in (data[1:], _batch_of(data[1:], count)):
        with suppress(RemoteProtocolError):
            _poll_back(vsr_batch.decode_batch(memoryview(body), count))
        with suppress(RemoteProtocolError):
            vsr_reply.decode_batches(memoryview(body))
    with suppress(RemoteProtocolError):
        decode_options(data)


def _poll_back(sent: vsr_batch.Decoded) -> None:
    """What is stored of any SEND can be polled."""
    area, starts, framed, _ = sent
    batch.stamp(
        area, starts, base_offset=9, timestamp_us=5, new_ids=lambda n: bytes(16 * n), summed=False
    )
    run = vsr_reply.Run([len(starts)], [9] if framed else None)
    reply = vsr_reply.encode_batches(area, starts, run, partition=0)
    read = b"".join(vsr_reply.decode_batches(reply))
    for message, other in zip(decode_messages(area), decode_messages(read), strict=True):
        assert message == other


def _batch_of(data: bytes, count: int) -> bytes:
    """With right checksums, as far as its frames have room."""
    frames, sums, position = bytearray(data), b"", 0
    for _ in range(count):
        lengths = frames[position + 32 : position + 40]
        end = position + 48 + sum(struct.unpack("<II", lengths)) if len(lengths) == 8 else 0
        if not position < end <= len(frames):
            break
        sums += (checksum := xxhash.xxh3_64_digest(frames[position + 8 : end])[::-1])
        frames[position : position + 8] = checksum
        position = end
    front = bytes(24) + data[:8].ljust(8, b"\0") + (256 + len(frames)).to_bytes(8, "little")
    counted = count.to_bytes(4, "little")
    return (
        front + xxhash.xxh3_64_digest(front + counted + sums)[::-1] + counted + bytes(204) + frames
    )


def iggy_replies(data: bytes) -> None:
    for command in COMMANDS.values():
        for dialect in Dialect:
            with suppress(RemoteProtocolError):
                command.decode_response(data, dialect)


def iggy_messages(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        decode_messages(data)
    with suppress(RemoteProtocolError):
        decode_headers(data)


def sbp_stream(data: bytes) -> None:
    decoder = sbp_frames.FrameDecoder(1 << 20)
    for event in decoder.feed(data):
        if isinstance(event, sbp_frames.Frame) and event.opcode in OPCODES:
            row = OPCODES[event.opcode]
            for kind in (row.request, row.response):
                if kind is not None:
                    with suppress(RemoteProtocolError):
                        flat.decode(kind, event.header)


def sbp_headers(data: bytes) -> None:
    for row in OPCODES.values():
        for kind in (row.request, row.response):
            if kind is not None:
                with suppress(RemoteProtocolError):
                    flat.decode(kind, data)


def sbp_batches(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        for header, batch in records.split(data):
            if header.attributes & records.INDEXED:
                records.decode_index(header, batch)
    with suppress(RemoteProtocolError):
        records.decode_batch_v0(data)


def umbilical_messages(data: bytes) -> None:
    for kind in FIELD_GROUPS.values():
        with suppress(RemoteProtocolError):
            codec.decode(kind, data)


def umbilical_frames(data: bytes) -> None:
    for connection in (rpc.ServerConnection(), rpc.ClientConnection("p", 1, bytes(16))):
        with suppress(RemoteProtocolError):
            connection.feed(data)
    with suppress(RemoteProtocolError):
        rpc.ServerConnection().feed(rpc.PREAMBLE + data)


def umbilical_login(data: bytes) -> None:
    def look_up(identifier: bytes) -> sasl.Credential:
        return sasl.Credential(tokens.decode_identifier(identifier).owner, b"")

    login = sasl.ServerLogin(look_up, "nonce")
    with suppress(RemoteProtocolError, UnauthenticatedError):
        rpc.ServerConnection(login=login).feed(b"hrpc\x09\x00\xdf" + data)
    with suppress(RemoteProtocolError, UnauthenticatedError):
        sasl.ClientLogin(tokens.Token(b"", b""), "c").answer(data)
    with suppress(RemoteProtocolError):
        sasl.parse_directives(data)
    with suppress(RemoteProtocolError):
        tokens.parse_token(data.decode("latin-1"))


def peer_links(data: bytes) -> None:
    """At once, in pieces with room for long bodies, and as a greeting."""
    peer_frames.FrameDecoder().split(memoryview(data), 16)
    with suppress(RemoteProtocolError):
        decode_hello(data)
    decoder = peer_frames.FrameDecoder(1 << 20)
    for at in range(0, len(data), 19):
        decoder.feed(data[at : at + 19])
        decoder.room()


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        iggy_requests,
        iggy_requests_c,
        iggy_batches_c,
        iggy_replies,
        iggy_messages,
        sbp_stream,
        sbp_headers,
        sbp_batches,
        umbilical_messages,
        umbilical_frames,
        umbilical_login,
        peer_links,
    )
}


def main(name: str, seconds: str, corpus: str) -> None:
    target = TARGETS[name]

    def run(data: bytes) -> None:
        with suppress(RemoteProtocolError):
            target(data)

    limits = [f"-max_total_time={int(seconds)}", f"-rss_limit_mb={RSS_MIB_MAX}", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={corpus}/", corpus], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
