"""Batches of dialect C, made by slow code that takes their messages one by one."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import xxhash

from headrace.wire.iggy import batch
from headrace.wire.iggy.messages.messages import Message, decode_messages, encode_send
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.user_headers import UserHeader, encode_headers

FRAME = struct.Struct("<Q16sIIIIQ")
HEADERS = encode_headers([UserHeader.of("a", 7)])


def by_hand(
    messages: list[Message],
    *,
    partition: int = 0,
    polled: bool = False,
    of: list[Message] | None = None,
) -> bytes:
    """What the reference says, in the plainest way; `of` a batch, if these are a part of it."""
    whole = of or messages
    base = (whole[0].offset, messages[0].timestamp_us) if polled else (0, 0)
    oldest = min(message.origin_timestamp_us for message in whole)
    pieces, sums = [], b""
    for index, message in enumerate(messages, whole.index(messages[0])):
        time = message.origin_timestamp_us - oldest
        rest = FRAME.pack(
            0, message.id.to_bytes(16, "little"), index, time,
            len(message.headers), len(message.payload), 0,
        )[8:] + message.payload + message.headers  # fmt: skip
        checksum = xxhash.xxh3_64_intdigest(rest).to_bytes(8, "little")
        sums += checksum
        pieces.append(checksum + rest)
    frames = b"".join(pieces)
    covered = struct.pack("<QQQQQ", partition, *base, oldest, 256 + len(frames))
    checksum = xxhash.xxh3_64_digest(covered + struct.pack("<I", len(messages)) + sums)[::-1]
    return covered + checksum + struct.pack("<I", len(messages)) + bytes(204) + frames


def area_of(messages: list[Message]) -> tuple[bytearray, np.ndarray]:
    request = encode_send("s", "t", Partitioning.balanced(), messages)
    return bytearray(request.area), request.starts


def stamped(messages: list[Message], base_offset: int = 1000) -> list[Message]:
    area, starts = area_of(messages)
    batch.stamp(
        area, starts, base_offset=base_offset, timestamp_us=5_000_000,
        new_ids=lambda n: batch.consecutive_ids(10**30, n),
    )  # fmt: skip
    return decode_messages(area)


def of(count: int, kind: str) -> list[Message]:
    kinds: dict[str, Callable[[int], int]] = {
        "equal": lambda n: 100,
        "equal large": lambda n: 2001,
        "mixed": lambda n: n * 7 % 90,
        "mixed large": lambda n: 500 + n * 13 % 900,
        "empty": lambda n: 0,
    }
    sizes = kinds[kind]
    return [
        Message(
            bytes([n % 256]) * sizes(n),
            HEADERS if kind.startswith("mixed") and n % 3 == 0 else b"",
            id=2**70 + n,
            origin_timestamp_us=1_700_000_000_000_000 + 31 * n % 97,
        )
        for n in range(count)
    ]


KINDS = ("equal", "equal large", "mixed", "mixed large", "empty")
COUNTS = (1, 2, 16, 17, 100, 4200)
