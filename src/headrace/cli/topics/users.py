"""headrace user, permission and token: who may log in, and what they may do.

Permissions are written as text: `poll_messages`, `shop:read_stream`, `shop/orders:send_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from headrace.cli import server_names
from headrace.cli.connection import connects, with_broker
from headrace.cli.declare import Group, argument, confirm, json_option, option, yes_option
from headrace.cli.output import print_fields, print_json, print_rows
from headrace.observability.escaping import note
from headrace.wire.iggy.messages.users import (
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.wire.iggy.messages.users import Permissions, PersonalAccessToken, User

EVERYTHING = "all"


@dataclass(frozen=True, slots=True)
class KnownIds:
    """Ids of what the rules may name."""

    streams: Mapping[str, int]
    topics: Mapping[tuple[str, str], int]


def permission_flags(kind: type[Any]) -> list[str]:
    return [field.name for field in fields(kind) if not field.name.endswith("_id")]


def build_permissions(rules: Sequence[str], names: KnownIds) -> Permissions | None:
    """BadParameter for a rule that means nothing."""
    everywhere: set[str] = set()
    streams: dict[str, set[str]] = {}
    topics: dict[tuple[str, str], set[str]] = {}
    for rule in rules:
        where, colon, flag = rule.rpartition(":")
        stream, slash, topic = where.partition("/")
        if not colon:
            everywhere |= _known(rule, flag, GlobalPermissions)
        elif slash:
            topics.setdefault((stream, topic), set()).update(_known(rule, flag, TopicPermissions))
        else:
            streams.setdefault(stream, set()).update(_known(rule, flag, StreamPermissions))
    if not rules:
        return None
    for stream, _ in topics:
        streams.setdefault(stream, set())
    return Permissions(
        GlobalPermissions(**dict.fromkeys(everywhere, True)),
        tuple(_stream(name, flags, topics, names) for name, flags in streams.items()),
    )


def _known(rule: str, flag: str, kind: type[Any]) -> set[str]:
    known = [name for name in permission_flags(kind) if name != "topics"]
    if flag == EVERYTHING:
        return set(known)
    if flag not in known:
        raise click.BadParameter(f"{rule!r}: no such permission; known here: {', '.join(known)}")
    return {flag}


def _stream(
    name: str, flags: set[str], topics: Mapping[tuple[str, str], set[str]], names: KnownIds
) -> StreamPermissions:
    if name not in names.streams:
        raise click.BadParameter(f"there is no stream {name!r}")
    inside = []
    for (stream, topic), allowed in topics.items():
        if stream != name:
            continue
        if (stream, topic) not in names.topics:
            raise click.BadParameter(f"there is no topic {stream}/{topic}")
        inside.append(TopicPermissions(names.topics[stream, topic], **dict.fromkeys(allowed, True)))
    return StreamPermissions(
        names.streams[name], **dict.fromkeys(flags, True), topics=tuple(inside)
    )


def list_permission_forms() -> list[dict[str, str]]:
    """Every permission, with the forms in which it can be given."""
    kinds = (
        ("NAME", GlobalPermissions),
        ("STREAM:NAME", StreamPermissions),
        ("STREAM/TOPIC:NAME", TopicPermissions),
    )
    found: dict[str, list[str]] = {}
    for form, kind in kinds:
        for flag in permission_flags(kind):
            if flag != "topics":
                found.setdefault(flag, []).append(form.replace("NAME", flag))
    return [{"name": name, "given": ", ".join(forms)} for name, forms in found.items()]


def format_permissions(
    permissions: Permissions | None,
    streams: Mapping[int, str],
    topics: Mapping[tuple[int, int], str],
) -> list[str]:
    """The rules that would build them; what has no name any more by its number."""
    if permissions is None:
        return []
    rules = [
        flag
        for flag in permission_flags(GlobalPermissions)
        if getattr(permissions.everywhere, flag)
    ]
    for stream in permissions.streams:
        name = streams.get(stream.stream_id, str(stream.stream_id))
        kept = [flag for flag in permission_flags(StreamPermissions) if flag != "topics"]
        rules += [f"{name}:{flag}" for flag in kept if getattr(stream, flag)]
        for topic in stream.topics:
            rules += [
                f"{name}/{topics.get((stream.stream_id, topic.topic_id), topic.topic_id)}:{flag}"
                for flag in permission_flags(TopicPermissions)
                if getattr(topic, flag)
            ]
    return rules


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
    return {
        **_row(found.user),
        "permissions": format_permissions(found.permissions, streams, topics),
    }


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
    print_rows(list_permission_forms(), ("name", "given"), as_json=as_json)


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
    streams = {stream.name: stream.id for stream in await client.get_streams()}
    wanted = {rule.partition("/")[0] for rule in allowed if "/" in rule.partition(":")[0]}
    topics: dict[tuple[str, str], int] = {}
    for stream in wanted & streams.keys():
        topics |= {(stream, topic.name): topic.id for topic in await client.get_topics(stream)}
    return build_permissions(allowed, KnownIds(streams, topics))


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
