"""headrace decode: what bytes of the three protocols say.

A capture, raw bytes or hex text comes in; one line for each frame goes out. `captures.py` takes
packets apart into streams of bytes, `explaining.py` turns frames into text and masks passwords.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.declare import argument, command, json_option, option

if TYPE_CHECKING:
    from headrace.cli.decode.explaining import ExplainedFrame, Side

_HEX = re.compile(rb"^[0-9a-fA-F\s]*$")


@command("decode")
@argument(
    "file",
    default="-",
    metavar="FILE",
    help="A capture (pcap, pcapng), bytes, or hex text; - is standard input. Lines of hex"
    " that begin with < came from the server.",
)
@option("--protocol", default="auto", help="sbp, iggy or umbilical, if it cannot be seen.")
@option("--server", is_flag=True, help="The bytes came from the server, not from the client.")
@option(
    "--port", type=click.IntRange(min=0), default=0, help="Of a capture only what this port says."
)
@json_option
def decode(file: str, protocol: str, server: bool, port: int, as_json: bool) -> None:
    """Print frames of SBP, Iggy (all dialects) or the umbilical as text. Passwords are masked."""
    from headrace.cli.decode.captures import is_capture
    from headrace.cli.decode.explaining import Protocol, Side

    if protocol not in set(Protocol):
        raise click.BadParameter("--protocol is auto, sbp, iggy or umbilical")
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        from headrace.errors import ConfigError

        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    if is_capture(data):
        frames = _from_capture(file, data, Protocol(protocol), port)
    else:
        side = Side.SERVER if server else Side.CLIENT
        frames = _from_bytes(data, Protocol(protocol), side)
    found = 0
    for place, frame in frames:
        found += 1
        _print(place, frame, as_json=as_json)
    if not found:
        print("headrace: no whole frame in these bytes", file=sys.stderr)
        raise click.exceptions.Exit(1)


def _from_bytes(
    data: bytes, protocol: Any, side: Side
) -> Iterator[tuple[dict[str, Any], ExplainedFrame]]:
    from headrace.cli.decode.explaining import Conversation

    conversation = Conversation(protocol)
    for sender, piece in pieces_of(data, side):
        for frame in conversation.feed(sender, piece):
            yield {}, frame


def pieces_of(data: bytes, side: Side) -> list[tuple[Side, bytes]]:
    """Bytes as they are, or hex with a mark for each line's sender; # begins a comment."""
    from headrace.cli.decode.explaining import Side

    lines = [line.partition(b"#")[0].strip() for line in data.splitlines()]
    marks = {b">": Side.CLIENT, b"<": Side.SERVER}
    found: list[tuple[Side, bytes]] = []
    for line in lines:
        sender = marks.get(line[:1], side)
        text = line[1:] if line[:1] in marks else line
        if not _HEX.match(text):
            return [(side, data)]
        digits = b"".join(text.split())
        if len(digits) % 2:
            return [(side, data)]
        if digits:
            found.append((sender, bytes.fromhex(digits.decode())))
    return found or [(side, data)]


def _from_capture(
    file: str, data: bytes, protocol: Any, port: int
) -> Iterator[tuple[dict[str, Any], ExplainedFrame]]:
    import tempfile

    from headrace.cli.decode.captures import read_capture
    from headrace.cli.decode.explaining import Conversation

    conversations: dict[int, Conversation] = {}
    with tempfile.NamedTemporaryFile(suffix=".pcap") as copy:
        path = Path(file)
        if file == "-":
            copy.write(data)
            copy.flush()
            path = Path(copy.name)
        for time, connection, side, piece in read_capture(path):
            if port and port not in (connection.client[1], connection.server[1]):
                continue
            conversation = conversations.setdefault(connection.number, Conversation(protocol))
            place = {"time": round(float(time), 6), "connection": connection.number}
            for frame in conversation.feed(side, piece):
                yield place, frame


def _print(place: dict[str, Any], frame: ExplainedFrame, *, as_json: bool) -> None:
    import json

    if as_json:
        told = {
            **place, "protocol": frame.protocol, "sender": frame.sender, "name": frame.name,
            "fields": frame.fields,
        }  # fmt: skip
        print(json.dumps(told | ({"error": frame.error} if frame.error else {})))
        return
    arrow = ">" if frame.sender == "client" else "<"
    where = "".join(f"{value} " for value in place.values())
    print(f"{where}{arrow} {frame.protocol} {frame.name}")
    for line in _lines(frame.fields, "    "):
        print(line)
    if frame.error:
        print(f"    ! {frame.error}")


def _lines(value: dict[str, Any], indent: str) -> Iterator[str]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield f"{indent}{name}:"
            yield from _lines(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(each, dict) for each in item):
            yield f"{indent}{name}:"
            for number, each in enumerate(item):
                if isinstance(each, dict):
                    yield f"{indent}  {number}:"
                    yield from _lines(each, indent + "    ")
                else:
                    yield f"{indent}  {each}"
        else:
            yield f"{indent}{name}: {item}"
