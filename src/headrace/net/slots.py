"""Who has to go when all connections of a server are taken and another one comes.

Only those who have proved nothing: of the host that has most of them, the one that has been there
longest. So whoever fills a server with idle connections puts out its own, and a newcomer that
proves itself soon has the time to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol, TypeVar

from headrace.errors import HeadraceError
from headrace.net.addresses import parse_address


class Occupant(Protocol):
    @property
    def address(self) -> str:
        """`host:port` of the peer."""


T = TypeVar("T", bound=Occupant)


def host_of(address: str) -> str:
    try:
        return parse_address(address)[0]
    except HeadraceError:
        return address  # the peer was gone before anybody asked who it was


def pick(unproven: Iterable[T]) -> T | None:
    """Of these, in the order they came; None when there is nobody."""
    hosts = [(host_of(each.address), each) for each in unproven]
    if not hosts:
        return None
    fullest, _ = Counter(host for host, _ in hosts).most_common(1)[0]
    return next(each for host, each in hosts if host == fullest)


class NowAndThen:
    """Whether to say something again that a peer can make true as often as it likes."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._seconds = seconds
        self._said = float("-inf")

    def is_due(self, now: float) -> bool:
        if now - self._said < self._seconds:
            return False
        self._said = now
        return True
