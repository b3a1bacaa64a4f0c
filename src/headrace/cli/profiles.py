"""headrace profile: named servers, so that a command need not say each time where to go.

Profiles are one JSON file for the person, mode 0600. Passwords and tokens are kept as `env:NAME` or
`file:PATH`, never as themselves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from headrace.cli.declare import Group, argument, json_option, option
from headrace.cli.output import print_fields, print_rows
from headrace.observability.escaping import note


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


app = Group("profile", help="Named servers for the other commands.")

FIELDS = (
    "address", "http", "username", "password", "token", "tls", "tls_ca", "tls_server_name",
)  # fmt: skip
COLUMNS = ("name", "current", "address", "http", "username", "tls")
name_argument = argument("name", metavar="NAME", shell_complete=complete)


@app.command("set")
@name_argument
@option("--address", help="The Iggy port.")
@option("--http", help="The HTTP port.")
@option("--username")
@option("--password", help="env:NAME or file:PATH.")
@option("--token", help="Instead of a password: env:NAME or file:PATH.")
@option("--tls/--no-tls", default=None)
@option("--tls-ca")
@option("--tls-server-name")
def set_profile(
    name: str,
    address: str | None,
    http: str | None,
    username: str | None,
    password: str | None,
    token: str | None,
    tls: bool | None,
    tls_ca: str | None,
    tls_server_name: str | None,
) -> None:
    """Make or change a profile. The first one becomes the current one."""
    given = (address, http, username, password, token, tls, tls_ca, tls_server_name)
    values = {key: value for key, value in zip(FIELDS, given, strict=True) if value is not None}
    for secret in ("password", "token"):
        if not str(values.get(secret, "env:")).startswith(("env:", "file:")):
            raise click.BadParameter(f"--{secret} takes env:NAME or file:PATH, not the {secret}")
    found = load()
    found["profiles"][name] = {**found["profiles"].get(name, {}), **values}
    found["current"] = found.get("current") or name
    save(found)
    note(f"saved {name}")


@app.command("list")
@json_option
def list_profiles(as_json: bool) -> None:
    """List the profiles."""
    found = load()
    rows = [
        {"name": name, "current": name == found.get("current"), **values}
        for name, values in sorted(found["profiles"].items())
    ]
    print_rows(rows, COLUMNS, as_json=as_json)


@app.command("show")
@argument("name", default="", metavar="NAME", shell_complete=complete)
@json_option
def show(name: str, as_json: bool) -> None:
    """Show a profile, or the current one."""
    found = load()
    wanted = name or found.get("current") or ""
    print_fields({"name": wanted, **existing(found, wanted)}, as_json=as_json)


@app.command("use")
@name_argument
def use(name: str) -> None:
    """Make a profile the current one."""
    found = load()
    existing(found, name)
    found["current"] = name
    save(found)
    note(f"using {name}")


@app.command("delete")
@name_argument
def delete(name: str) -> None:
    """Forget a profile."""
    found = load()
    existing(found, name)
    del found["profiles"][name]
    if found.get("current") == name:
        found["current"] = ""
    save(found)
    note(f"deleted {name}")
