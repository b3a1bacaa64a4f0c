"""headrace profile: make, list and choose profiles."""

from __future__ import annotations

import click

from headrace.cli.declare import Group, argument, option
from headrace.cli.output import print_fields, print_rows
from headrace.cli.parameters import json_option
from headrace.cli.profile_file import complete, existing, load, save
from headrace.observability.escaping import note

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
