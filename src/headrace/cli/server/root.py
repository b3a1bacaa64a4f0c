"""Root's password, shown to the person who starts a broker for the first time."""

from __future__ import annotations

from headrace.broker.term.term import RootCredentials
from headrace.cli.output import note


def tell_root(root: RootCredentials) -> None:
    if root.generated:
        note("first start: the root user was made. This password is shown only now:")
        note(f"  username {root.username}\n  password {root.password}")
