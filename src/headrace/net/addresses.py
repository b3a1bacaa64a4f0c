"""`host:port` texts, IPv6 in brackets."""

from __future__ import annotations

from headrace.errors import InvalidArgumentError


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. InvalidArgumentError when it is neither."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidArgumentError("an IPv6 address stands in brackets", address=text)
    if not separator or not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise InvalidArgumentError("not an address of the form host:port", address=text)
    if int(port) > 0xFFFF:
        raise InvalidArgumentError("port out of range", address=text)
    return host, int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def advertised(advertise: str, listened: str) -> str:
    """What to tell others: `advertise` with the real port when it names none, else `listened`."""
    if not advertise:
        return listened
    if advertise.count(":") == 1 or "]:" in advertise:
        return format_address(*parse_address(advertise))
    host = advertise.removeprefix("[").removesuffix("]")
    return format_address(host, parse_address(listened)[1])
