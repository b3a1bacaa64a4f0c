"""Limits and rules of users, passwords and tokens, with the numbers they are refused with."""

from __future__ import annotations

import pytest

from headrace.broker.catalogue import decisions
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.system import Empty
from tests.unit.broker.harness import Client, Harness, code_of, opened

ALL_USERS = u.Permissions(u.GlobalPermissions(manage_users=True))


async def create(root: Client, name: str, password: str = "secret", status: int = 1,
                 permissions: u.Permissions | None = None) -> None:  # fmt: skip
    request = u.CreateUser(name, password, u.UserStatus(status), permissions)
    await root.call(c.CREATE_USER, request)


async def log_in(h: Harness, name: str, password: str = "secret") -> Client:
    client = h.connect()
    await client.login(name, password)
    return client


async def make_token(client: Client, name: str, expiry_us: int = 0) -> str:
    request = u.CreatePersonalAccessToken(name, expiry_us)
    return (await client.call(c.CREATE_PERSONAL_ACCESS_TOKEN, request)).token


async def use_token(client: Client, token: str) -> int:
    request = u.LoginWithPersonalAccessToken(token)
    return await code_of(client.call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, request))


@pytest.mark.parametrize(
    ("name", "password", "code"),
    [
        ("ab", "secret", 43),
        ("abc", "secret", 0),
        ("a" * 50, "secret", 0),
        ("a" * 51, "secret", 43),
        ("ann", "xy", 44),
        ("ann", "xyz", 0),
        ("ann", "x" * 100, 0),
        ("ann", "x" * 101, 44),
        ("iggy", "secret", 46),
    ],
)
async def test_names_and_passwords_have_limits(name: str, password: str, code: int) -> None:
    async with opened() as h:
        root = await h.root()
        assert await code_of(create(root, name, password)) == code
        if code == 0:
            assert await code_of(log_in(h, name, password)) == 0


async def test_renaming_obeys_the_same_limits() -> None:
    async with opened() as h:
        root = await h.root()
        await create(root, "ann")
        for name, code in (("ab", 43), ("a" * 51, 43), ("iggy", 46), ("ann", 0), ("bob", 0)):
            assert await code_of(root.call(c.UPDATE_USER, u.UpdateUser("ann", name, None))) == code
        assert await code_of(log_in(h, "ann")) == 42
        assert await code_of(log_in(h, "bob")) == 0


async def test_inactive_users_get_in_by_no_door() -> None:
    async with opened() as h:
        root = await h.root()
        await create(root, "ann")
        ann = await log_in(h, "ann")
        token = await make_token(ann, "laptop")
        await create(root, "sleeper", status=2)
        assert await code_of(log_in(h, "sleeper")) == 47
        assert await code_of(log_in(h, "sleeper", "wrong")) == 42, "not told to a guesser"
        await root.call(c.UPDATE_USER, u.UpdateUser("ann", None, u.UserStatus.INACTIVE))
        assert await code_of(ann.call(c.GET_ME, Empty())) == 40
        assert await use_token(h.connect(), token) == 47


async def test_root_stays() -> None:
    async with opened() as h:
        root = await h.root()
        for reference in (0, "iggy"):
            assert await code_of(root.call(c.DELETE_USER, u.DeleteUser(reference))) == 48
            update = u.UpdatePermissions(reference, None)
            assert await code_of(root.call(c.UPDATE_PERMISSIONS, update)) == 49
        assert await code_of(root.stream()) == 0


async def test_changing_passwords() -> None:
    async with opened() as h:
        root = await h.root()
        await create(root, "ann")
        await create(root, "bob", permissions=ALL_USERS)
        ann, bob = await log_in(h, "ann"), await log_in(h, "bob")

        async def change(by: Client, whose: str, current: str, new: str) -> int:
            request = u.ChangePassword(whose, current, new)
            return await code_of(by.call(c.CHANGE_PASSWORD, request))

        assert await change(ann, "ann", "wrong", "better") == 42
        assert await change(ann, "ann", "secret", "xy") == 44
        assert await change(ann, "ann", "secret", "x" * 101) == 44
        assert await change(ann, "bob", "secret", "stolen") == 41
        # Somebody else's needs the right to manage users, and the password all the same.
        assert await change(bob, "ann", "wrong", "better") == 42
        assert await change(bob, "ann", "secret", "better") == 0
        assert await change(bob, "nobody", "secret", "better") == 20
        assert await code_of(log_in(h, "ann")) == 42
        assert await code_of(log_in(h, "ann", "better")) == 0
        # Who was logged in with the old one is out.
        assert await code_of(ann.call(c.GET_ME, Empty())) == 40


async def test_a_deleted_users_sessions_and_tokens_end() -> None:
    async with opened() as h:
        root = await h.root()
        await create(root, "ann")
        first, second = await log_in(h, "ann"), await log_in(h, "ann")
        token = await make_token(first, "laptop")
        await root.call(c.DELETE_USER, u.DeleteUser("ann"))
        for client in (first, second):
            assert await code_of(client.call(c.GET_ME, Empty())) == 40
        assert await use_token(h.connect(), token) == 20
        # Somebody new under the freed name and number inherits nothing.
        await create(root, "ann", "another")
        assert await use_token(h.connect(), token) == 20
        assert await code_of(first.call(c.GET_ME, Empty())) == 40


async def test_a_failed_second_login_leaves_the_first() -> None:
    async with opened() as h:
        root = await h.root()
        assert await code_of(root.login("iggy", "wrong")) == 42
        assert await code_of(root.stream()) == 0
        await create(root, "ann")
        assert await root.login("ann", "secret") == 1
        assert await code_of(root.stream("x")) == 41


async def test_token_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "TOKENS_PER_USER_MAX", 5)
    async with opened() as h:
        root = await h.root()
        await create(root, "ann")
        ann = await log_in(h, "ann")
        for name, code in (("ab", 50), ("abc", 0), ("a" * 30, 0), ("a" * 31, 50), ("abc", 51)):
            assert await code_of(make_token(ann, name)) == code, name
        for n in range(3):
            await make_token(ann, f"more {n}")
        assert await code_of(make_token(ann, "one too many")) == 52
        assert await code_of(make_token(root, "abc")) == 0, "names and limits are each user's own"
        assert await use_token(h.connect(), "") == 53
        assert await use_token(h.connect(), "x" * 101) == 53
        assert await use_token(h.connect(), "x" * 100) == 20
        delete = u.DeletePersonalAccessToken("more 1")
        await ann.call(c.DELETE_PERSONAL_ACCESS_TOKEN, delete)
        assert await code_of(make_token(ann, "fits again")) == 0
        assert await code_of(root.call(c.DELETE_PERSONAL_ACCESS_TOKEN, delete)) == 20


async def test_tokens_expire_to_the_microsecond() -> None:
    async with opened() as h:
        root = await h.root()
        token = await make_token(root, "brief", 1_000_000)
        forever = await make_token(root, "forever", (1 << 64) - 1)
        h.clock.now_us_ += 999_999
        assert await use_token(h.connect(), token) == 0
        h.clock.now_us_ += 1
        assert await use_token(h.connect(), token) == 54
        h.clock.now_us_ += 10**15
        assert await use_token(h.connect(), forever) == 0
