"""Logins, permissions, tokens through the dispatcher."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.catalogue.passwords import Guard, Passwords, draw_token, token_digest
from headrace.config.broker import BrokerSettings
from headrace.errors import ThrottledError, UnauthenticatedError
from headrace.net.credentials import Ticket, service_token, verify
from headrace.runtime.system import system_runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import users as u
from headrace.wire.iggy.messages.extensions import ReadTicket, SpeakFor
from headrace.wire.iggy.messages.system import Empty, GetClient
from headrace.wire.iggy.messages.topics import CreateStream, DeleteStream, GetStream
from headrace.wire.iggy.primitives import Partitioning
from tests.unit.broker.fake_cluster import FakeCluster
from tests.unit.broker.harness import Client, Harness, code_of, fake_runtime, opened
from tests.unit.net.sbp_fixtures import until

OPEN = {c.PING.code, c.LOGIN_USER.code, c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN.code}


async def add_user(root: Client, name: str, permissions: u.Permissions | None = None) -> None:
    await root.call(c.CREATE_USER, u.CreateUser(name, "secret", u.UserStatus.ACTIVE, permissions))


async def logged_in(h: Harness, name: str) -> Client:
    client = h.connect()
    await client.login(name, "secret")
    return client


async def test_without_login_only_ping_and_logins_are_served() -> None:
    async with opened() as h:
        stranger = h.connect()
        assert await stranger.status(c.PING.code) == 0
        for code, row in c.SERVED.items():
            if code not in OPEN and row.request is Empty:
                assert await stranger.status(code) == 40, row.name
        assert await code_of(stranger.stream()) == 40
        assert await code_of(stranger.call(c.GET_STREAM, GetStream("s"))) == 40


async def test_login_and_logout() -> None:
    async with opened() as h:
        client = h.connect()
        assert await code_of(client.login("iggy", "wrong")) == 42
        assert await code_of(client.login("nobody", "wrong")) == 42
        assert await client.login() == 0
        await client.stream()
        await client.call(c.LOGOUT_USER, Empty())
        assert await code_of(client.stream("x")) == 40
        assert await client.login() == 0


async def test_a_second_login_replaces_the_first() -> None:
    async with opened() as h:
        client = await h.root()
        await add_user(client, "ann")
        assert await client.login("ann", "secret") == 1
        me = await client.call(c.GET_ME, Empty())
        assert me.client.user_id == 1
        assert await code_of(client.stream()) == 41


async def test_users_live_and_die() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        root = await h.root()
        await add_user(root, "ann")
        assert await code_of(add_user(root, "ann")) == 46
        short = u.CreateUser("bob", "xy")
        assert await code_of(root.call(c.CREATE_USER, short)) == 44
        ann = await logged_in(h, "ann")
        await root.call(c.UPDATE_USER, u.UpdateUser("ann", "anne", u.UserStatus.INACTIVE))
        assert await code_of(ann.call(c.GET_ME, Empty())) == 40
        assert await code_of(ann.login("anne", "secret")) == 47
        await root.call(c.UPDATE_USER, u.UpdateUser("anne", None, u.UserStatus.ACTIVE))
        await ann.login("anne", "secret")
        change = u.ChangePassword("anne", "nope", "better")
        assert await code_of(ann.call(c.CHANGE_PASSWORD, change)) == 42
        await ann.call(c.CHANGE_PASSWORD, u.ChangePassword("anne", "secret", "better"))
        assert await code_of(ann.login("anne", "secret")) == 42
        assert await code_of(root.call(c.DELETE_USER, u.DeleteUser(0))) == 48
        assert await code_of(root.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions(0))) == 49
    async with opened(cluster, epoch=2) as h:
        ann = h.connect()
        assert await ann.login("anne", "better") == 1
        root = await h.root()
        await root.call(c.DELETE_USER, u.DeleteUser("anne"))
        assert await code_of(ann.call(c.GET_ME, Empty())) == 40
        assert await root.call(c.GET_USER, u.GetUser("anne")) is None
        assert await code_of(root.call(c.DELETE_USER, u.DeleteUser("anne"))) == 20


async def test_reading_oneself_needs_no_right() -> None:
    async with opened() as h:
        root = await h.root()
        await add_user(root, "ann")
        ann = await logged_in(h, "ann")
        details = await ann.call(c.GET_USER, u.GetUser("ann"))
        assert details is not None
        assert details.user.username == "ann"
        assert await code_of(ann.call(c.GET_USER, u.GetUser("iggy"))) == 41
        assert await code_of(ann.call(c.GET_USERS, Empty())) == 41
        other = u.ChangePassword("iggy", "iggy", "stolen")
        assert await code_of(ann.call(c.CHANGE_PASSWORD, other)) == 41


async def test_permissions_reach_as_far_as_they_were_given() -> None:
    async with opened() as h:
        root = await h.root()
        await root.stream()
        await root.topic(name="open")
        await root.topic(name="shut")
        granted = u.Permissions(
            streams=(
                u.StreamPermissions(
                    0, topics=(u.TopicPermissions(0, poll_messages=True, send_messages=True),)
                ),
            )
        )
        await add_user(root, "ann", granted)
        ann = await logged_in(h, "ann")
        await ann.send(b"x", topic="open")
        assert (await ann.poll(topic="open")).count == 1
        assert await code_of(ann.send(b"x", topic="shut")) == 41
        assert await code_of(ann.poll(topic="shut")) == 41
        assert await code_of(ann.call(c.GET_STREAM, GetStream("s"))) == 41
        assert await code_of(ann.call(c.CREATE_STREAM, CreateStream("x"))) == 41
        # Whether something exists is not told to those who may not see it.
        assert await code_of(ann.poll(topic="nothing")) == 41
        shown = await root.call(c.GET_USER, u.GetUser("ann"))
        assert shown is not None
        assert shown.permissions == granted
        await root.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions("ann", None))
        assert await code_of(ann.poll(topic="open")) == 41
        # Rights of a deleted stream are not inherited by whatever gets its number.
        await root.call(c.UPDATE_PERMISSIONS, u.UpdatePermissions("ann", granted))
        await root.call(c.DELETE_STREAM, DeleteStream("s"))
        await root.stream("again")
        await root.topic("again", "open")
        assert await code_of(ann.poll(stream="again", topic="open")) == 41
        unknown = u.Permissions(streams=(u.StreamPermissions(9),))
        update = u.UpdatePermissions("ann", unknown)
        assert await code_of(root.call(c.UPDATE_PERMISSIONS, update)) == 1009


async def test_tokens() -> None:
    cluster = FakeCluster()
    async with opened(cluster) as h:
        root = await h.root()
        raw = await root.call(
            c.CREATE_PERSONAL_ACCESS_TOKEN, u.CreatePersonalAccessToken("laptop", 0)
        )
        assert raw.token.startswith("iggypat-")
        brief = await root.call(
            c.CREATE_PERSONAL_ACCESS_TOKEN, u.CreatePersonalAccessToken("brief", 1_000_000)
        )
        again = u.CreatePersonalAccessToken("laptop", 0)
        assert await code_of(root.call(c.CREATE_PERSONAL_ACCESS_TOKEN, again)) == 51
        stored = b"".join(
            data for s in cluster.streams.values() for r in s.ranges for _, _, data in r.batches
        )
        assert raw.token.encode() not in stored
        assert b"iggypat" not in stored
    async with opened(cluster, epoch=2) as h:
        client = h.connect()
        login = c.LOGIN_WITH_PERSONAL_ACCESS_TOKEN
        identity = await client.call(login, u.LoginWithPersonalAccessToken(raw.token))
        assert identity.user_id == 0
        listed = await client.call(c.GET_PERSONAL_ACCESS_TOKENS, Empty())
        assert [t.name for t in listed.tokens] == ["laptop", "brief"]
        assert listed.tokens[0].expires_at_us == 0
        h.clock.now_us_ += 1_000_000
        other = h.connect()
        assert await code_of(other.call(login, u.LoginWithPersonalAccessToken(brief.token))) == 54
        wrong = u.LoginWithPersonalAccessToken(raw.token[:-1] + "_")
        assert await code_of(other.call(login, wrong)) == 20
        await client.call(c.DELETE_PERSONAL_ACCESS_TOKEN, u.DeletePersonalAccessToken("laptop"))
        assert await code_of(other.call(login, u.LoginWithPersonalAccessToken(raw.token))) == 20
        gone = u.DeletePersonalAccessToken("laptop")
        assert await code_of(client.call(c.DELETE_PERSONAL_ACCESS_TOKEN, gone)) == 20


async def test_clients_are_listed() -> None:
    async with opened() as h:
        root, stranger = await h.root(), h.connect()
        clients = (await root.call(c.GET_CLIENTS, Empty())).clients
        assert [(x.client_id, x.user_id) for x in clients] == [
            (root.session.client_id, 0),
            (stranger.session.client_id, None),
        ]
        h.disconnect(stranger)
        gone = GetClient(stranger.session.client_id)
        assert await root.call(c.GET_CLIENT, gone) is None
        assert await code_of(root.call(c.GET_CLIENT, GetClient(0))) == 101


async def test_nothing_is_answered_without_the_lease() -> None:
    async with opened() as h:
        root = await h.root()
        h.lease.holds = False
        assert await root.status(c.PING.code) == 8
        assert await code_of(root.stream()) == 8


async def test_answers_wait_for_a_lease_that_comes_back() -> None:
    """Before a request is looked at, and when it was carried out: nobody is told what is not so."""
    async with opened() as h:
        root = await h.root()
        h.lease.holds, h.lease.comes_back = False, asyncio.Event()
        waiting = asyncio.ensure_future(root.status(c.PING.code))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        h.lease.comes_back.set()
        assert await waiting == 0

        h.lease.comes_back = asyncio.Event()
        creating = asyncio.ensure_future(root.stream())
        await asyncio.sleep(0)
        h.lease.holds = False
        await until(lambda: bool(h.broker.catalogue.streams))
        await asyncio.sleep(0.01)
        assert not creating.done()
        h.lease.comes_back.set()
        await creating


async def test_read_tickets_name_the_streams_of_allowed_topics() -> None:
    async with opened() as h:
        root = await h.root()
        await root.stream()
        await root.topic(partitions=2)
        await root.topic(name="other")
        await root.send(b"a", b"b", to=Partitioning.to_partition(1))
        hello = await root.call(c.HELLO, Empty())
        assert hello.cluster == "c0ffee"
        assert "READ_TICKET" in hello.features
        ticket = await root.call(c.READ_TICKET, ReadTicket(topics=(("s", "t"),)))
        assert ticket.nodes == ("node:1",)
        (topic,) = ticket.topics
        assert [(p.partition, p.start, p.next) for p in topic.partitions] == [(0, 0, 0), (1, 0, 2)]
        assert all(p.sbp_stream in h.cluster.streams for p in topic.partitions)
        proof = verify(b"s" * 32, ticket.ticket, h.clock.now_ms())
        assert isinstance(proof, Ticket)
        assert proof.stream_ids == {p.sbp_stream for p in topic.partitions}
        await add_user(root, "ann")
        ann = await logged_in(h, "ann")
        both = ReadTicket(topics=(("s", "t"), ("s", "other")))
        assert await code_of(ann.call(c.READ_TICKET, both)) == 41
        missing = ReadTicket(topics=(("s", "nope"),))
        assert await code_of(root.call(c.READ_TICKET, missing)) == 2010


# -- the guard


async def test_guessing_gets_slower_and_one_at_a_time() -> None:
    runtime, clock = fake_runtime()
    passwords = Passwords(runtime, time_cost=1, memory_kib=8)
    settings = BrokerSettings(login_failures_free=2, login_delay_ms_max=350, login_waiting_max=3)
    guard = Guard(runtime, settings)
    stored = await passwords.hash("right")

    async def attempt(password: str, host: str = "1.2.3.4") -> None:
        await guard.check(passwords, "ann", host, stored, password)

    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            await attempt("wrong")
    assert clock.slept == [0.1, 0.2, 0.35]
    with pytest.raises(UnauthenticatedError):
        await attempt("wrong", host="5.6.7.8")
    assert len(clock.slept) == 3, "others are not slowed down"
    results = await asyncio.gather(*(attempt("right") for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(r, ThrottledError) for r in results) == 2
    assert sum(r is None for r in results) == 3
    passwords.close()


async def test_nobody_keeps_out_who_was_in_before() -> None:
    """Guessers fill the queue of a name, invented names that of a host; a password that was right
    is known again, until it is another."""
    runtime, _ = fake_runtime()
    passwords = Passwords(runtime, time_cost=1, memory_kib=8)
    guard = Guard(runtime, BrokerSettings(login_waiting_max=2, logins_waiting_per_host_max=8))
    stored = await passwords.hash("right")
    await guard.check(passwords, "ann", "h", stored, "right")
    flood = [
        asyncio.ensure_future(guard.check(passwords, f"nobody {n}", "h", None, "x"))
        for n in range(200)
    ]
    guesses = [
        asyncio.ensure_future(guard.check(passwords, "ann", "h", stored, f"{n}")) for n in range(9)
    ]
    await asyncio.sleep(0)
    async with asyncio.timeout(0.05):
        await guard.check(passwords, "ann", "h", stored, "right")
    refused = await asyncio.gather(*flood, *guesses, return_exceptions=True)
    assert sum(isinstance(each, ThrottledError) for each in refused) >= 192
    assert not any(each is None for each in refused)
    changed = await passwords.hash("another")
    with pytest.raises(UnauthenticatedError):
        await guard.check(passwords, "ann", "h", changed, "right")
    passwords.close()


async def test_a_connection_that_never_failed_comes_first() -> None:
    """Invented names on many connections: whoever comes new is not behind all of them."""
    runtime, _ = fake_runtime()
    passwords = Passwords(runtime, time_cost=1, memory_kib=8)
    guard = Guard(runtime, BrokerSettings(logins_per_host_max=1, logins_waiting_per_host_max=50))
    stored = await passwords.hash("right")
    over: list[str] = []

    async def attempt(name: str, failures: int, password: str = "x") -> None:
        try:
            await guard.check(
                passwords, name, "h", stored if name == "ann" else None, password, failures=failures
            )
        finally:
            over.append(name)

    flood = [asyncio.ensure_future(attempt(f"nobody {n}", 1 + n % 5)) for n in range(200)]
    await asyncio.sleep(0.001)
    await attempt("ann", 0, "right")
    behind = sum(not each.done() for each in flood)
    assert behind >= 40, "it was not behind them"
    gone = flood[-1] if not flood[-1].done() else next(each for each in flood if not each.done())
    gone.cancel()  # a connection that closes while it waits
    await asyncio.gather(*flood, return_exceptions=True)
    assert len(over) == 201
    assert not guard._logins_by_host
    await guard.check(passwords, "ann", "h", stored, "right")
    passwords.close()


async def test_guesses_over_http_are_their_hosts_and_not_the_control_planes() -> None:
    async with opened() as h:
        token = service_token(h.broker.identity.secret)
        page, program = h.connect(), h.connect()
        for _ in range(8):
            await page.call(c.SPEAK_FOR, SpeakFor(host="10.0.0.1", token=token))
            assert await code_of(page.login("iggy", "wrong")) == 42
        before = len(h.clock.slept)
        assert before
        assert await code_of(program.login("iggy", "wrong")) == 42
        assert len(h.clock.slept) == before, "nobody failed there"
        forged = SpeakFor(host="10.0.0.2", token="headrace-service-0")
        assert await code_of(program.call(c.SPEAK_FOR, forged)) == 53
        assert program.session.host == "127.0.0.1"


async def test_hashes_are_salted_argon2id() -> None:
    passwords = Passwords(system_runtime())
    first, second = await passwords.hash("same"), await passwords.hash("same")
    assert first != second
    assert first.startswith("$argon2id$")
    assert await passwords.verify(first, "same")
    assert not await passwords.verify(first, "other")
    assert not await passwords.verify(None, "same")
    assert not await passwords.verify("not a hash", "same")
    passwords.close()


def test_tokens_are_long_and_different() -> None:
    runtime = system_runtime()
    tokens = {draw_token(runtime) for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) <= 100 for token in tokens)
    assert len({token_digest(token) for token in tokens}) == 100
