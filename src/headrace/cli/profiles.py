"""headrace profile: named servers, so that a command need not say each time where to go.

One JSON file for the person, mode 0600. Passwords and tokens are kept as `env:NAME` or `file:PATH`,
never as themselves.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli import completion
from headrace.cli.options import AsJson
from headrace.cli.output import note, print_fields, print_rows

app = typer.Typer(help="Named servers for the other commands.", no_args_is_help=True)

FIELDS = (
    "address", "http", "username", "password", "token", "tls", "tls_ca", "tls_server_name",
)  # fmt: skip
COLUMNS = ("name", "current", "address", "http", "username", "tls")
Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=completion.profiles)]


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
    return _existing(found, wanted)


def _existing(found: dict[str, Any], name: str) -> dict[str, Any]:
    from headrace.errors import ConfigError

    if name not in found["profiles"]:
        known = ", ".join(sorted(found["profiles"])) or "none yet"
        raise ConfigError(f"there is no profile {name!r}; known: {known}")
    values: dict[str, Any] = found["profiles"][name]
    return values


@app.command("set")
def set_profile(
    name: Name,
    address: Annotated[str | None, typer.Option("--address", help="The Iggy port.")] = None,
    http: Annotated[str | None, typer.Option("--http", help="The HTTP port.")] = None,
    username: Annotated[str | None, typer.Option("--username")] = None,
    password: Annotated[
        str | None, typer.Option("--password", help="env:NAME or file:PATH.")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", help="Instead of a password: env:NAME or file:PATH.")
    ] = None,
    tls: Annotated[bool | None, typer.Option("--tls/--no-tls")] = None,
    tls_ca: Annotated[str | None, typer.Option("--tls-ca")] = None,
    tls_server_name: Annotated[str | None, typer.Option("--tls-server-name")] = None,
) -> None:
    """Make or change a profile. The first one becomes the current one."""
    given = (address, http, username, password, token, tls, tls_ca, tls_server_name)
    values = {key: value for key, value in zip(FIELDS, given, strict=True) if value is not None}
    for secret in ("password", "token"):
        if not str(values.get(secret, "env:")).startswith(("env:", "file:")):
            raise typer.BadParameter(f"--{secret} takes env:NAME or file:PATH, not the {secret}")
    found = load()
    found["profiles"][name] = {**found["profiles"].get(name, {}), **values}
    found["current"] = found.get("current") or name
    save(found)
    note(f"saved {name}")


@app.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """List the profiles."""
    found = load()
    rows = [
        {"name": name, "current": name == found.get("current"), **values}
        for name, values in sorted(found["profiles"].items())
    ]
    print_rows(rows, COLUMNS, as_json=as_json)


@app.command("show")
def show(name: Name = "", as_json: AsJson = False) -> None:
    """Show a profile, or the current one."""
    found = load()
    wanted = name or found.get("current") or ""
    print_fields({"name": wanted, **_existing(found, wanted)}, as_json=as_json)


@app.command("use")
def use(name: Name) -> None:
    """Make a profile the current one."""
    found = load()
    _existing(found, name)
    found["current"] = name
    save(found)
    note(f"using {name}")


@app.command("delete")
def delete(name: Name) -> None:
    """Forget a profile."""
    found = load()
    _existing(found, name)
    del found["profiles"][name]
    if found.get("current") == name:
        found["current"] = ""
    save(found)
    note(f"deleted {name}")
