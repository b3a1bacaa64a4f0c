"""An error as a person reads it: a sentence, and what to do next where the sentence alone does not
say it. For programs the same with its kind, its number and its fields."""

from __future__ import annotations

import json
import re
from typing import Any

from headrace.errors import (
    ConfigError,
    CorruptionError,
    DeadlineError,
    DiskFullError,
    FormatError,
    HeadraceError,
    LockedError,
    NotFoundError,
    StorageError,
    UnauthenticatedError,
    UnauthorizedError,
    UnavailableError,
)

# What lists the things among which a missing one was looked for.
_LISTS = {
    "stream": "headrace stream list",
    "topic": "headrace topic list",
    "partition": "headrace partition list STREAM/TOPIC",
    "group": "headrace group list STREAM/TOPIC",
    "user": "headrace user list",
    "token": "headrace token list",
    "client": "headrace client list",
    "pipeline": "headrace pipeline list",
    "container": "headrace container list NAME",
    "operator": "headrace operator list NAME",
}
_MISSING = re.compile(rf"\bno ({'|'.join(_LISTS)})\b")

_SERVER = "Is the server running? Start it with `headrace up`, or say where it is with {option}."
_WHERE = (
    "Clients connect to the address that `headrace up` prints as {label}; give it with {option}."
)
_TLS = "A server that takes TLS only wants --tls, and --tls-ca unless the system trusts it."

_ADVICE: tuple[tuple[type[HeadraceError], str], ...] = (
    (
        UnauthenticatedError,
        "Give the user with --username and --password, or HEADRACE_USERNAME and HEADRACE_PASSWORD.",
    ),
    (
        UnauthorizedError,
        "Log in as another user, or ask for the permission: `headrace permission list` names them, "
        "`headrace permission set` gives them.",
    ),
    (LockedError, "Stop what uses it, or choose another --data-dir."),
    (FormatError, "Or choose another --data-dir."),
    (DiskFullError, "Free space on that disk, delete a topic, or move the data directory."),
    (
        CorruptionError,
        "`headrace verify` names what is damaged; a backup (`headrace restore`) has it whole.",
    ),
)

# By the number of a refusal, which says more than its class.
_BY_CODE = {
    3008: "Give it one: `headrace partition add {topic}`.",
    12001: (
        "It may be taking over, or too few data nodes answer (`headrace cluster status`). Try "
        "again; the server's log says more."
    ),
    13000: (
        "The server's log says which file and why. Full: free space or delete a topic. Damaged: "
        "`headrace verify` names the offsets."
    ),
}
_TOPIC = re.compile(r"[^\s/]+/[^\s/]+(?= has no partitions)")


def advice(error: HeadraceError) -> str:
    text = str(error)
    if "`headrace " in text or "--placement-managers" in text:
        return ""  # it says so itself
    code = getattr(error, "code", None)
    if code in _BY_CODE:
        topic = _TOPIC.search(text)
        return _BY_CODE[code].format(topic=topic[0] if topic else "STREAM/TOPIC")
    if getattr(error, "command", "") == "CHANGE_PASSWORD":
        return ""  # the password that is wrong there is not the one of the login
    if isinstance(error, NotFoundError):
        missing = _MISSING.search(text)
        return f"See `{_LISTS[missing[1]]}`." if missing else ""
    if "TLS handshake failed" in text or "CERTIFICATE_VERIFY_FAILED" in text:
        return (
            "Name the authority that signed its certificate with --tls-ca; `headrace up` prints "
            "where that of a development certificate is."
        )
    if isinstance(error, UnavailableError | DeadlineError):
        return _unreached(text)
    if isinstance(error, StorageError) and "ermission denied" in text:
        return "Give this user the right to write there, or choose another --data-dir."
    return next((text for kind, text in _ADVICE if isinstance(error, kind)), "")


def _unreached(text: str) -> str:
    over_http = text.startswith(("http://", "https://"))
    option = "--http" if over_http else "--address"
    if "not the Iggy port" in text or "not the dashboard" in text:
        label = "dashboard" if over_http else "Iggy clients"
        return f"{_WHERE.format(label=label, option=option)} {_TLS}"
    if over_http or "cannot connect" in text or "closed the connection" in text:
        return f"{_SERVER.format(option=option)} {_TLS}"
    if "did not answer" in text:
        return "It is busy, or another takes its place: try again. Its log says more."
    return ""


def tell(error: HeadraceError) -> str:
    """Write the sentence of an error. A file is named before what happened to it, as every other
    program does."""
    path = error.data.get("path")
    if isinstance(error, StorageError | NotFoundError) and isinstance(path, str):
        rest = {name: value for name, value in error.data.items() if name not in ("path", "errno")}
        more = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in rest.items())
        message = error.message[:1].lower() + error.message[1:]
        return f"{path}: {message}{f' ({more})' if more else ''}"
    return str(error)


def report(error: HeadraceError, *, as_json: bool) -> tuple[str, int]:
    """What to print on standard error, and the exit status."""
    status = 2 if isinstance(error, ConfigError) else 1
    if as_json:
        return json.dumps(_fields(error), default=str), status
    hint = advice(error)
    return f"headrace: {tell(error)}" + (f"\n  {hint}" if hint else ""), status


def _fields(error: HeadraceError) -> dict[str, Any]:
    found: dict[str, Any] = {"error": tell(error), "kind": _kind(error)}
    hint = advice(error)
    if hint:
        found["advice"] = hint
    code = getattr(error, "code", None)
    if isinstance(code, int):
        from headrace.wire.iggy.errors import name_of

        found |= {"code": code, "name": name_of(code), "command": getattr(error, "command", "")}
    if error.data:
        found["fields"] = error.data
    return found


def _kind(error: HeadraceError) -> str:
    """The name of its class in `headrace.errors`, which is what programs know."""
    names = (kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "headrace.errors")
    return next(names, "HeadraceError")
