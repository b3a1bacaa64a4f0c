"""headrace user, permission and token: who may log in, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli import server_names
from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import Group, argument, confirm, json_option, option, yes_option
from headrace.cli.output import print_fields, print_json, print_rows
from headrace.observability.escaping import note

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.users import Permissions, PersonalAccessToken, User

app = Group("user", help="Users and what they may do.")
permissions = Group("permission", help="What users may do, and where.")
tokens = Group("token", help="Personal access tokens of the user you are.")

name_argument = argument("name", metavar="USER", shell_complete=server_names.users)
allow_option = option(
    "--allow",
    multiple=True,
    help="A permission, may be given again: NAME, STREAM:NAME or STREAM/TOPIC:NAME;"
    " `all` for every one.",
)
COLUMNS = ("name", "id", "active", "created_at_us")
TOKEN_COLUMNS = ("name", "expires_at_us")


def _row(user: User) -> dict[str, Any]:
    from headrace.wire.iggy.messages.users import UserStatus

    return {
        "name": user.username,
        "id": user.id,
        "active": user.status is UserStatus.ACTIVE,
        "created_at_us": user.created_at_us,
    }


@app.command("list")
@json_option
@connects
def list_users(as_json: bool) -> None:
    """List the users."""
    print_rows(map(_row, with_broker(lambda c: c.get_users())), COLUMNS, as_json=as_json)


@app.command("show")
@name_argument
@json_option
@connects
def show(name: str, as_json: bool) -> None:
    """Show a user and the permissions given to it."""

    print_fields(with_broker(lambda client: _user(client, name)), as_json=as_json)


async def _user(client: IggyClient, name: str) -> dict[str, Any]:
    from headrace.cli.topics.permissions import told
    from headrace.errors import NotFoundError

    found = await client.get_user(name)
    if found is None:
        raise NotFoundError(f"there is no user {name!r}")
    streams = {stream.id: stream.name for stream in await client.get_streams()}
    topics: dict[tuple[int, int], str] = {}
    for one in found.permissions.streams if found.permissions is not None else ():
        if one.topics and one.stream_id in streams:
            for topic in await client.get_topics(one.stream_id):
                topics[one.stream_id, topic.id] = topic.name
    return {**_row(found.user), "permissions": told(found.permissions, streams, topics)}


@app.command("create")
@name_argument
@option("--new-password", prompt=True, hide_input=True, confirmation_prompt=True)
@allow_option
@json_option
@connects
def create(name: str, new_password: str, allow: tuple[str, ...], as_json: bool) -> None:
    """Make a user. Without --allow it may log in and do nothing."""

    async def work(client: IggyClient) -> dict[str, Any]:
        permissions = await _permissions(client, allow)
        made = await client.create_user(name, new_password, permissions=permissions)
        return _row(made.user)

    print_fields(with_broker(work), as_json=as_json)


@permissions.command("list")
@json_option
def list_permissions(as_json: bool) -> None:
    """List the permissions there are, and where each can be given."""
    from headrace.cli.topics.permissions import places

    print_rows(places(), ("name", "given"), as_json=as_json)


@permissions.command("show")
@name_argument
@json_option
@connects
def show_permissions(name: str, as_json: bool) -> None:
    """List what a user may do, as `permission set --allow` takes it."""

    async def work(client: IggyClient) -> list[dict[str, str]]:
        found = await _user(client, name)
        return [{"permission": rule} for rule in found["permissions"]]

    print_rows(with_broker(work), ("permission",), as_json=as_json)


@permissions.command("set")
@name_argument
@allow_option
@connects
def set_permissions(name: str, allow: tuple[str, ...]) -> None:
    """Replace the permissions of a user; without --allow it keeps none."""

    async def work(client: IggyClient) -> None:
        await client.update_permissions(name, await _permissions(client, allow))

    with_broker(work)
    note(f"{name} may now: {', '.join(allow) or 'nothing'}")


async def _permissions(client: IggyClient, allowed: tuple[str, ...]) -> Permissions | None:
    from headrace.cli.topics.permissions import Names, build

    streams = {stream.name: stream.id for stream in await client.get_streams()}
    wanted = {rule.partition("/")[0] for rule in allowed if "/" in rule.partition(":")[0]}
    topics: dict[tuple[str, str], int] = {}
    for stream in wanted & streams.keys():
        topics |= {(stream, topic.name): topic.id for topic in await client.get_topics(stream)}
    return build(allowed, Names(streams, topics))


@app.command("rename")
@name_argument
@argument("new", metavar="NEW_NAME")
@connects
def rename(name: str, new: str) -> None:
    """Give a user another name."""
    with_broker(lambda c: c.update_user(name, username=new))
    note(f"renamed {name} to {new}")


@app.command("enable")
@name_argument
@connects
def enable(name: str) -> None:
    """Let a user log in again."""
    _set_active(name, active=True)


@app.command("disable")
@name_argument
@connects
def disable(name: str) -> None:
    """Keep a user from logging in."""
    _set_active(name, active=False)


def _set_active(name: str, *, active: bool) -> None:
    from headrace.wire.iggy.messages.users import UserStatus

    status = UserStatus.ACTIVE if active else UserStatus.INACTIVE
    with_broker(lambda c: c.update_user(name, status=status))
    note(f"{name} is {'active' if active else 'inactive'}")


@app.command("password")
@name_argument
@option("--current", prompt=True, hide_input=True)
@option("--new", prompt=True, hide_input=True, confirmation_prompt=True)
@connects
def password(name: str, current: str, new: str) -> None:
    """Change a password."""
    with_broker(lambda c: c.change_password(name, current=current, new=new))
    note(f"changed the password of {name}")


@app.command("delete")
@name_argument
@yes_option
@connects
def delete(name: str, yes: bool) -> None:
    """Delete a user with its tokens."""
    confirm(f"Delete user {name} with its tokens?", yes=yes)
    with_broker(lambda c: c.delete_user(name))
    note(f"deleted {name}")


def _token_row(token: PersonalAccessToken) -> dict[str, Any]:
    """Null is for ever."""
    return {"name": token.name, "expires_at_us": token.expires_at_us or None}


@tokens.command("list")
@json_option
@connects
def list_tokens(as_json: bool) -> None:
    """List your tokens."""
    found = with_broker(lambda c: c.get_tokens())
    print_rows(map(_token_row, found), TOKEN_COLUMNS, as_json=as_json)


@tokens.command("create")
@argument("name", metavar="NAME")
@option(
    "--expiry",
    "expiry_seconds",
    type=click.FloatRange(min=0),
    default=0,
    help="Seconds it is good for; 0 = for ever.",
)
@json_option
@connects
def create_token(name: str, expiry_seconds: float, as_json: bool) -> None:
    """Make a token. It is printed this once: the server keeps only its hash."""
    expiry_us = int(expiry_seconds * 1_000_000)
    token = with_broker(lambda c: c.create_token(name, expiry_us=expiry_us))
    if as_json:
        print_json({"name": name, "token": token})
    else:
        print(token)


@tokens.command("delete")
@argument("name", metavar="NAME")
@yes_option
@connects
def delete_token(name: str, yes: bool) -> None:
    """Delete a token; whoever is logged in with it stays so."""
    confirm(f"Delete token {name}? Programs that log in with it will be refused.", yes=yes)
    with_broker(lambda c: c.delete_token(name))
    note(f"deleted {name}")
