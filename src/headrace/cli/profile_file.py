"""Profiles: named servers, so that a command need not say each time where to go.

One JSON file for the person, mode 0600. Passwords and tokens are kept as `env:NAME` or `file:PATH`,
never as themselves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import click


def path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "headrace" / "profiles.json"


def load() -> dict[str, Any]:
    """`{"current": name, "profiles": {name: {field: value}}}`"""
    import json

    from headrace.errors import ConfigError

    try:
        found = json.loads(path().read_text())
    except FileNotFoundError:
        return {"current": "", "profiles": {}}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path()}: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("profiles"), dict):
        raise ConfigError(f"{path()} is not a file of profiles; remove it to start again")
    return found


def save(found: dict[str, Any]) -> None:
    import json

    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(json.dumps(found, indent=2) + "\n")
    draft.replace(file)


def chosen(name: str | None) -> dict[str, Any]:
    """The profile of that name, or the current one; ConfigError when there is none of the name."""
    found = load()
    wanted = name or os.environ.get("HEADRACE_PROFILE") or found.get("current") or ""
    if not wanted:
        return {}
    return existing(found, wanted)


def existing(found: dict[str, Any], name: str) -> dict[str, Any]:
    from headrace.errors import ConfigError

    if name not in found["profiles"]:
        known = ", ".join(sorted(found["profiles"])) or "none yet"
        raise ConfigError(f"there is no profile {name!r}; known: {known}")
    values: dict[str, Any] = found["profiles"][name]
    return values


def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """What a shell offers; nothing when the file cannot be read."""
    try:
        names = load()["profiles"]
    except Exception:  # whatever it is, a half-typed line is no place to tell it
        return []
    return sorted(name for name in names if name.startswith(incomplete) and name.isprintable())
