"""headrace user, permission and token: who may log in, and what they may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import completion
from headrace.cli.connection import connects, with_broker
from headrace.cli.options import AsJson, Yes, confirm
from headrace.cli.output import note, print_fields, print_json, print_rows

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.users import Permissions, PersonalAccessToken, User

app = typer.Typer(help="Users and what they may do.", no_args_is_help=True)
permissions = typer.Typer(help="What users may do, and where.", no_args_is_help=True)
tokens = typer.Typer(help="Personal access tokens of the user you are.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="USER", autocompletion=completion.users)]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        help="A permission, may be given again: NAME, STREAM:NAME or STREAM/TOPIC:NAME;"
        " `all` for every one.",
    ),
]
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
@connects
def list_users(as_json: AsJson = False) -> None:
    """List the users."""
    print_rows(map(_row, with_broker(lambda c: c.get_users())), COLUMNS, as_json=as_json)


@app.command("show")
@connects
def show(name: Name, as_json: AsJson = False) -> None:
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
@connects
def create(
    name: Name,
    new_password: Annotated[
        str,
        typer.Option("--new-password", prompt=True, hide_input=True, confirmation_prompt=True),
    ],
    allow: Allow = None,
    as_json: AsJson = False,
) -> None:
    """Make a user. Without --allow it may log in and do nothing."""

    async def work(client: IggyClient) -> dict[str, Any]:
        permissions = await _permissions(client, allow or [])
        made = await client.create_user(name, new_password, permissions=permissions)
        return _row(made.user)

    print_fields(with_broker(work), as_json=as_json)


@permissions.command("list")
def list_permissions(as_json: AsJson = False) -> None:
    """List the permissions there are, and where each can be given."""
    from headrace.cli.topics.permissions import places

    print_rows(places(), ("name", "given"), as_json=as_json)


@permissions.command("show")
@connects
def show_permissions(name: Name, as_json: AsJson = False) -> None:
    """List what a user may do, as `permission set --allow` takes it."""

    async def work(client: IggyClient) -> list[dict[str, str]]:
        found = await _user(client, name)
        return [{"permission": rule} for rule in found["permissions"]]

    print_rows(with_broker(work), ("permission",), as_json=as_json)


@permissions.command("set")
@connects
def set_permissions(name: Name, allow: Allow = None) -> None:
    """Replace the permissions of a user; without --allow it keeps none."""

    async def work(client: IggyClient) -> None:
        await client.update_permissions(name, await _permissions(client, allow or []))

    with_broker(work)
    note(f"{name} may now: {', '.join(allow or []) or 'nothing'}")


async def _permissions(client: IggyClient, allowed: list[str]) -> Permissions | None:
    from headrace.cli.topics.permissions import Names, build

    streams = {stream.name: stream.id for stream in await client.get_streams()}
    wanted = {rule.partition("/")[0] for rule in allowed if "/" in rule.partition(":")[0]}
    topics: dict[tuple[str, str], int] = {}
    for stream in wanted & streams.keys():
        topics |= {(stream, topic.name): topic.id for topic in await client.get_topics(stream)}
    return build(allowed, Names(streams, topics))


@app.command("rename")
@connects
def rename(name: Name, new: Annotated[str, typer.Argument(metavar="NEW_NAME")]) -> None:
    """Give a user another name."""
    with_broker(lambda c: c.update_user(name, username=new))
    note(f"renamed {name} to {new}")


@app.command("enable")
@connects
def enable(name: Name) -> None:
    """Let a user log in again."""
    _set_active(name, active=True)


@app.command("disable")
@connects
def disable(name: Name) -> None:
    """Keep a user from logging in."""
    _set_active(name, active=False)


def _set_active(name: str, *, active: bool) -> None:
    from headrace.wire.iggy.messages.users import UserStatus

    status = UserStatus.ACTIVE if active else UserStatus.INACTIVE
    with_broker(lambda c: c.update_user(name, status=status))
    note(f"{name} is {'active' if active else 'inactive'}")


@app.command("password")
@connects
def password(
    name: Name,
    current: Annotated[str, typer.Option("--current", prompt=True, hide_input=True)],
    new: Annotated[
        str, typer.Option("--new", prompt=True, hide_input=True, confirmation_prompt=True)
    ],
) -> None:
    """Change a password."""
    with_broker(lambda c: c.change_password(name, current=current, new=new))
    note(f"changed the password of {name}")


@app.command("delete")
@connects
def delete(name: Name, yes: Yes = False) -> None:
    """Delete a user with its tokens."""
    confirm(f"Delete user {name} with its tokens?", yes=yes)
    with_broker(lambda c: c.delete_user(name))
    note(f"deleted {name}")


def _token_row(token: PersonalAccessToken) -> dict[str, Any]:
    """Null is for ever."""
    return {"name": token.name, "expires_at_us": token.expires_at_us or None}


@tokens.command("list")
@connects
def list_tokens(as_json: AsJson = False) -> None:
    """List your tokens."""
    found = with_broker(lambda c: c.get_tokens())
    print_rows(map(_token_row, found), TOKEN_COLUMNS, as_json=as_json)


@tokens.command("create")
@connects
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    expiry_seconds: Annotated[
        float, typer.Option("--expiry", min=0, help="Seconds it is good for; 0 = for ever.")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a token. It is printed this once: the server keeps only its hash."""
    expiry_us = int(expiry_seconds * 1_000_000)
    token = with_broker(lambda c: c.create_token(name, expiry_us=expiry_us))
    if as_json:
        print_json({"name": name, "token": token})
    else:
        print(token)


@tokens.command("delete")
@connects
def delete_token(name: Annotated[str, typer.Argument(metavar="NAME")], yes: Yes = False) -> None:
    """Delete a token; whoever is logged in with it stays so."""
    confirm(f"Delete token {name}? Programs that log in with it will be refused.", yes=yes)
    with_broker(lambda c: c.delete_token(name))
    note(f"deleted {name}")
