"""Who a connection speaks for when that is no user of the catalogue.

The controller is the cluster itself: it proves that by the cluster's secret, may do everything, and
nothing that is done to a user takes that away. A container holds a grant (`net/grants.py`) for the
topics of its application. Neither is listed among users, has a password or may have tokens. Their
uids lie above all that the catalogue ever gives out, and stay the same over restarts: publishers
belong to uids.
"""

from __future__ import annotations

import hashlib

from headrace.broker.catalogue.resources import ROOT_PERMISSIONS, User, UserStatus
from headrace.net.grants import Grant

OUTSIDE_UID = 1 << 62
"""Uids from here on are nobody's in the catalogue."""
OUTSIDE_ID = (1 << 32) - 2
"""What the wire shows of such a user: no slot of the catalogue."""
_HOLDER_BITS = 61


def _user(uid: int, name: str, *, everything: bool = False) -> User:
    return User(
        uid=uid,
        id=OUTSIDE_ID,
        name=name,
        created_at=0,
        status=UserStatus.ACTIVE,
        password_hash="",
        permissions=ROOT_PERMISSIONS if everything else None,
    )


SERVICE = _user(OUTSIDE_UID, "controller", everything=True)


def holder_of(grant: Grant) -> User:
    """The same for every grant of one holder."""
    digest = hashlib.blake2b(grant.holder.encode(), digest_size=8).digest()
    number = int.from_bytes(digest, "little") & ((1 << _HOLDER_BITS) - 1)
    return _user(OUTSIDE_UID + 1 + number, grant.holder)
