"""What to do next, for errors whose text alone does not say it."""

from __future__ import annotations

from headrace.errors import (
    DiskFullError,
    FormatError,
    HeadraceError,
    LockedError,
    NotFoundError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
)

_ADVICE: tuple[tuple[type[HeadraceError], str], ...] = (
    (
        UnavailableError,
        "Is the server running? Start it with `headrace up`, or point --address at it. If it "
        "takes TLS only, use --tls and --tls-ca.",
    ),
    (
        UnauthenticatedError,
        "Give the user with --username and --password, or HEADRACE_USERNAME and HEADRACE_PASSWORD.",
    ),
    (UnauthorizedError, "Ask an administrator for the permission, or log in as another user."),
    (LockedError, "Another headrace runs on this data directory; stop it, or choose --data-dir."),
    (FormatError, "Upgrade headrace, or choose another --data-dir."),
    (DiskFullError, "Free space on the disk, delete a topic, or move the data directory."),
    (NotFoundError, "List what is there: `headrace stream list`, `headrace topic list STREAM`."),
)


_HTTP_ADVICE = (
    "Is the server running? Start it with `headrace up`, or point --http at its dashboard's "
    "address. If it takes TLS only, use --tls and --tls-ca."
)


_DISK_ADVICE = (
    "The server's disk refused it, and its log says which file and why. Full: free space or delete "
    "a topic. Damaged: `headrace verify` names the offsets."
)


_LATE_ADVICE = (
    "The server is there and could not do it now: it may be taking over, or too few data nodes "
    "answer (`headrace cluster status`). Try again; its log says more."
)


def advice(error: HeadraceError) -> str:
    if "`headrace " in str(error):
        return ""  # it says so itself
    if str(error).startswith("io_error"):  # what a client hears of it is a number
        return _DISK_ADVICE
    if isinstance(error, NotFoundError) and "no such application" in str(error):
        return "List what is there: `headrace pipeline list`."
    if str(error).startswith("task_timeout"):
        return _LATE_ADVICE
    if isinstance(error, UnavailableError) and error.message.startswith(("http://", "https://")):
        return _HTTP_ADVICE
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
