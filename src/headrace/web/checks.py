"""What `/ready` says: whether a role can serve, and if not, why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from headrace.observability.exposition import Family


class Check(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    reason: str = ""
    """For people: what is the matter, or how things are."""


class Observed(Protocol):
    """One role of a process, for `/metrics` and `/ready`. Asked at any time, while it starts and
    while it stops too; may not raise."""

    @property
    def role(self) -> str: ...

    async def families(self) -> Iterable[Family]: ...

    async def checks(self) -> list[Check]: ...
