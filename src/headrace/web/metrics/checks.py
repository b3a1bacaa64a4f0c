"""What `/ready` says: whether a role can serve, and if not, why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


async def ask(roles: Sequence[Observed]) -> dict[str, list[Check]]:
    return {role.role: await role.checks() for role in roles}


def all_ok(checks: list[Check]) -> bool:
    return all(check.ok for check in checks)


class CheckResult(msgspec.Struct, frozen=True):
    ok: bool
    reason: str


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `/ready`."""

    ready: bool
    reasons: list[str]
    roles: dict[str, dict[str, CheckResult]]
    """Results by role and by the name of the check."""


def describe(checks: dict[str, list[Check]]) -> Readiness:
    return Readiness(
        ready=all(map(all_ok, checks.values())),
        reasons=[
            f"{role}: {check.reason or check.name}"
            for role, found in checks.items()
            for check in found
            if not check.ok
        ],
        roles={
            role: {one.name: CheckResult(one.ok, one.reason) for one in found}
            for role, found in checks.items()
        },
    )
