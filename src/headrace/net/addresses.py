"""`host:port` texts: a name, an IPv4 address, or an IPv6 address in brackets."""

from __future__ import annotations

from ipaddress import AddressValueError, IPv6Address

from headrace.errors import InvalidArgumentError

HOST_CHARACTERS_MAX = 253  # of a name in DNS
_NOT_IN_HOSTS = frozenset(" \t\r\n/[]@,?#\\\0")


def parse_address(text: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. InvalidArgumentError when it is neither."""
    host, separator, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            IPv6Address(host)
        except AddressValueError as error:
            raise InvalidArgumentError(f"not an IPv6 address: {error}", address=text) from error
    elif ":" in host:
        raise InvalidArgumentError("an IPv6 address stands in brackets", address=text)
    if not _NOT_IN_HOSTS.isdisjoint(host) or len(host) > HOST_CHARACTERS_MAX:
        raise InvalidArgumentError("not a host name", address=text[: 2 * HOST_CHARACTERS_MAX])
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
    port = parse_address(listened)[1]
    bracketed = advertise if ":" not in advertise or "[" in advertise else f"[{advertise}]"
    return format_address(*parse_address(f"{bracketed}:{port}"))
