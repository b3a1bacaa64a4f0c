"""What servers of one era answer differently from those of another, one row per dialect.

Bytes differ in the codecs; this is what the same request *means*. A client gets the behaviour of
the server its SDK was written against, so its error handling keeps working.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.wire.iggy.dialects import Dialect


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    names_apart: bool
    """A stream, topic or group that is missing by name has another number than one by id."""
    unresolved_apart: bool
    """An offset whose owner cannot be told has a number of its own."""
    hides_forbidden: bool
    """What a user may not see looks as if it did not exist (GET of one thing)."""
    lists_need_parent: bool
    """Listing topics or groups of something missing is an error, not an empty list."""
    polls_need_count: bool
    """A poll of no messages is an error, not an empty reply."""
    removes_what_exists: bool
    """Deleting more partitions than exist deletes all, instead of being refused."""
    members_poll_any: bool
    """A group member may poll a partition that is another member's, if it says which."""
    refuses_unowned: bool = False
    """Such a poll is an error otherwise, instead of empty: the member asks for its part again."""
    login_token: bool
    """A login is answered with an access token behind the user's id."""


_B1 = Rules(
    names_apart=False,
    unresolved_apart=True,
    hides_forbidden=True,
    lists_need_parent=False,
    polls_need_count=False,
    removes_what_exists=False,
    members_poll_any=False,
    login_token=False,
)
_B2 = Rules(
    names_apart=False,
    unresolved_apart=True,
    hides_forbidden=False,
    lists_need_parent=False,
    polls_need_count=False,
    removes_what_exists=False,
    members_poll_any=False,
    login_token=False,
)
RULES: dict[Dialect, Rules] = {
    Dialect.A: Rules(
        names_apart=True,
        unresolved_apart=False,
        hides_forbidden=True,
        lists_need_parent=True,
        polls_need_count=True,
        removes_what_exists=True,
        members_poll_any=True,
        login_token=True,
    ),
    Dialect.B1: _B1,
    Dialect.B2: _B2,
    Dialect.C: replace(_B2, refuses_unowned=True),
}
