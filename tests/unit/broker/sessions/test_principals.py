"""The controller and containers as the broker sees them: no users, and nothing done to a user
touches them; and what a user's end takes with it."""

from __future__ import annotations

from contextlib import suppress

from headrace.errors import HeadraceError
from headrace.net.credentials import PREFIX, Scope, grant_bytes, make_grant, service_token
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages import topics as s
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.system import Empty
from headrace.wire.iggy.messages.topics import Compression, CreateTopic, DeleteTopic, GetTopic
from tests.unit.broker.harness import NOW_US, Client, Harness, code_of, opened
from tests.unit.broker.windows.test_publishing import topic

SECRET = b"s" * 32
ACTIVE = u.UserStatus.ACTIVE
HOUR_MS = 3_600_000
ADMIN = u.Permissions(u.GlobalPermissions.all())
MANAGER = u.Permissions(u.GlobalPermissions(manage_users=True))


async def service(h: Harness) -> Client:
    client = h.connect()
    token = u.LoginWithPersonalAccessToken(service_token(SECRET))
    await client.call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, token)
    return client


async def add(h: Harness, name: str, permissions: u.Permissions | None = None) -> Client:
    root = await h.root()
    await root.call(c.CREATE_USER, u.CreateUser(name, "secret", u.UserStatus.ACTIVE, permissions))
    client = h.connect()
    await client.login(name, "secret")
    return client


def shop(**more: object) -> str:
    scope = Scope(
        exp=NOW_US // 1000 + HOUR_MS,
        holder="pipeline shop",
        reads=("s/t",),
        writes=("s/out", "s/t.dead_letter"),
        publishers=("pipeline/shop/*", "spark/*"),
    )
    return make_grant(SECRET, scope)


async def present(client: Client, text: str) -> None:
    await client.call(c.PRESENT_GRANT, x.PresentGrant(grant=grant_bytes(text)))


async def with_grant(h: Harness, text: str) -> Client:
    client = h.connect()
    await present(client, text)
    await client.call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, u.LoginWithPersonalAccessToken(PREFIX))
    return client


# -- the controller


async def test_nothing_that_is_done_to_root_stops_the_controller() -> None:
    async with opened() as h:
        controller = await service(h)
        await add(h, "second", ADMIN)
        manager = await add(h, "manager", MANAGER)
        await manager.call(c.UPDATE_USER, u.UpdateUser("iggy", None, u.UserStatus.INACTIVE))
        await controller.call(c.GET_STREAMS, Empty())
        await (await service(h)).stream("made by the controller")
        assert await code_of(h.connect().login()) != 0


async def test_the_controller_is_in_no_list_of_users() -> None:
    async with opened() as h:
        controller = await service(h)
        found = await controller.call(c.GET_USERS, Empty())
        assert [user.username for user in found.users] == ["iggy"]
        token = u.CreatePersonalAccessToken("mine", 0)
        assert await code_of(controller.call(c.CREATE_PERSONAL_ACCESS_TOKEN, token)) == 41
        assert await code_of(controller.call(c.GET_PERSONAL_ACCESS_TOKENS, Empty())) == 41


async def test_somebody_with_all_rights_always_remains() -> None:
    async with opened() as h:
        root, manager = await h.root(), await add(h, "manager", MANAGER)
        off = u.UpdateUser("iggy", None, u.UserStatus.INACTIVE)
        assert await code_of(manager.call(c.UPDATE_USER, off)) == 49
        await root.call(c.UPDATE_USER, u.UpdateUser("manager", None, u.UserStatus.INACTIVE))
        second = await add(h, "second", ADMIN)
        await root.call(c.UPDATE_USER, off)
        for refused in (
            second.call(c.UPDATE_USER, u.UpdateUser("second", None, u.UserStatus.INACTIVE)),
            second.call(c.DELETE_USER, u.DeleteUser("second")),
            second.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions("second", MANAGER)),
            second.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions("second", None)),
        ):
            assert await code_of(refused) == 49
        await second.call(c.UPDATE_USER, u.UpdateUser("iggy", None, u.UserStatus.ACTIVE))
        await second.call(c.DELETE_USER, u.DeleteUser("second"))


# -- containers


async def test_a_container_does_what_its_grant_says_and_no_more() -> None:
    async with opened() as h:
        root = await h.root()
        await topic(root, 1)
        await root.topic(name="secret")
        container = await with_grant(h, shop())
        await root.send(b"x")
        assert len((await container.poll()).slices) == 1
        assert await code_of(container.poll(topic="secret")) == 41
        assert await code_of(container.send(b"y")) == 41
        out = CreateTopic("s", 1, Compression.NONE, 0, 0, 1, "out")
        await container.call(c.CREATE_TOPIC, out)
        await container.send(b"y", topic="out")
        assert await code_of(container.poll(topic="out")) == 41
        assert await code_of(container.call(c.CREATE_STREAM, s.CreateStream("s"))) == 1012
        other = CreateTopic("s", 1, Compression.NONE, 0, 0, 1, "other")
        ticket = x.ReadTicket(topics=(("s", "t"), ("s", "secret")))
        for refused in (
            container.call(c.CREATE_TOPIC, other),
            container.call(c.CREATE_STREAM, s.CreateStream("mine")),
            container.call(c.DELETE_TOPIC, DeleteTopic("s", "out")),
            container.call(c.DELETE_STREAM, s.DeleteStream("s")),
            container.call(c.GET_USERS, Empty()),
            container.call(c.GET_STREAMS, Empty()),
            container.call(c.GET_TOPIC, GetTopic("s", "secret")),
            container.call(c.READ_TICKET, ticket),
            container.call(c.CREATE_PERSONAL_ACCESS_TOKEN, u.CreatePersonalAccessToken("mine", 0)),
            container.call(c.CHANGE_PASSWORD, u.ChangePassword("iggy", "iggy", "mine")),
            container.call(c.CREATE_USER, u.CreateUser("eve", "secret", ACTIVE, ADMIN)),
        ):
            assert await code_of(refused) == 41
        await container.call(c.READ_TICKET, x.ReadTicket(topics=(("s", "t"),)))


async def test_numbers_are_no_way_around_a_grant() -> None:
    async with opened() as h:
        root = await h.root()
        await topic(root, 1)
        await root.topic(name="secret")
        container = await with_grant(h, shop())
        assert (await container.poll(stream=0, topic=0)).slices is not None
        assert await code_of(container.poll(stream=0, topic=1)) == 41
        assert await code_of(container.poll(stream=0, topic=7)) == 41


async def test_a_grant_ends_when_it_says() -> None:
    async with opened() as h:
        await topic(await h.root(), 1)
        container = await with_grant(h, shop())
        await container.poll()
        h.clock.now_us_ += HOUR_MS * 1000
        container.session.known_poll = None
        assert await code_of(container.poll()) == 40
        assert await code_of(with_grant(h, shop())) != 0


async def test_a_poll_that_is_repeated_ends_with_the_grant_too() -> None:
    async with opened() as h:
        root = await h.root()
        await topic(root, 1)
        await root.send(b"x")
        container = await with_grant(h, shop())
        await container.poll()
        await container.poll()
        h.clock.now_us_ += HOUR_MS * 1000
        assert await code_of(container.poll()) == 40


async def test_a_grant_that_nobody_signed_is_refused() -> None:
    async with opened() as h:
        forged = make_grant(b"x" * 32, Scope(exp=1 << 62, holder="iggy", reads=("*",)))
        assert await code_of(with_grant(h, forged)) != 0
        stranger = h.connect()
        with suppress(HeadraceError):
            await present(stranger, forged)
        login = u.LoginWithPersonalAccessToken(PREFIX)
        assert await code_of(stranger.call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login)) != 0
        assert stranger.session.user_uid is None


# -- a new password


async def test_a_new_password_ends_what_the_old_one_opened() -> None:
    async with opened() as h:
        ann, other = await add(h, "ann"), h.connect()
        await other.login("ann", "secret")
        made = u.CreatePersonalAccessToken("laptop", 0)
        token = (await ann.call(c.CREATE_PERSONAL_ACCESS_TOKEN, made)).token
        await ann.call(c.CHANGE_PASSWORD, u.ChangePassword("ann", "secret", "better"))
        assert await code_of(ann.call(c.GET_ME, Empty())) == 0, "who changed it knows the new one"
        assert await code_of(other.call(c.GET_ME, Empty())) == 40
        login = u.LoginWithPersonalAccessToken(token)
        assert await code_of(h.connect().call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login)) != 0
        await ann.call(c.CREATE_PERSONAL_ACCESS_TOKEN, made)
        cluster = h.cluster
    async with opened(cluster, epoch=2) as h:
        assert await code_of(h.connect().call(c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN, login)) != 0
        await h.connect().login("ann", "better")


async def test_changing_passwords_tells_nobody_which_names_there_are() -> None:
    async with opened() as h:
        ann = await add(h, "ann")
        for name in ("iggy", "nobody", 0, 77):
            change = u.ChangePassword(name, "wrong", "better")
            assert await code_of(ann.call(c.CHANGE_PASSWORD, change)) == 41
