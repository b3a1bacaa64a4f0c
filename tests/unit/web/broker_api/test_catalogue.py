"""What is sampled of a broker: rates, lag, histories; and how much is asked for at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from headrace.client.iggy import IggyClient
from headrace.runtime.system import system_runtime
from headrace.web.broker_api import groups
from headrace.web.broker_api.catalogue import Catalogue
from headrace.web.broker_api.groups import GroupWatch
from headrace.web.server.logins import Credentials, Login
from headrace.wire.iggy.messages.consumers import ConsumerOffset, Group
from headrace.wire.iggy.messages.topics import (
    UNLIMITED,
    Compression,
    PartitionInfo,
    Stream,
    Topic,
    TopicDetails,
)
from headrace.wire.iggy.messages.users import GlobalPermissions, Permissions, StreamPermissions
from tests.unit.web.server.test_sessions import FakeClock

ROOT = Login("root", may_manage=True, permissions=Permissions(GlobalPermissions.all()))


def topic(id_: int, messages: int = 0) -> Topic:
    size = messages * 10
    return Topic(id_, 1, 2, UNLIMITED, Compression.NONE, UNLIMITED, 1, size, messages, f"t{id_}")


@dataclass
class FakeStats:
    consumer_groups_count: int = 1


@dataclass
class FakeBroker:
    """One stream with topics; counts what it is asked."""

    topics: dict[int, Topic] = field(default_factory=dict)
    groups: dict[int, tuple[Group, ...]] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def as_user(self, credentials: Credentials) -> AbstractAsyncContextManager[IggyClient]:
        return self.as_service()

    @asynccontextmanager
    async def _service(self) -> AsyncIterator[IggyClient]:
        yield cast(IggyClient, self)

    def as_service(self) -> AbstractAsyncContextManager[IggyClient]:
        return self._service()

    async def login(self, credentials: Credentials) -> Login:
        return ROOT

    async def overview(self, login: Login) -> dict[str, Any]:
        return {}

    async def get_stats(self) -> FakeStats:
        return FakeStats(sum(map(len, self.groups.values())))

    async def get_streams(self) -> list[Stream]:
        messages = sum(one.messages_count for one in self.topics.values())
        return [Stream(1, 1, len(self.topics), messages * 10, messages, "s")]

    async def get_topics(self, stream: int) -> list[Topic]:
        self.calls.append("topics")
        return list(self.topics.values())

    async def get_topic(self, stream: int, id_: int) -> TopicDetails | None:
        found = self.topics.get(id_)
        if found is None:
            return None
        count = found.messages_count
        return TopicDetails(found, (PartitionInfo(0, 1, 1, max(0, count - 1), 1, count),))

    async def get_groups(self, stream: int, id_: int) -> tuple[Group, ...]:
        self.calls.append(f"groups {id_}")
        return self.groups.get(id_, ())

    async def get_consumer_offset(self, *where: Any) -> ConsumerOffset | None:
        self.calls.append("offset")
        _, _, id_, partition = where
        if id_ not in self.stored:
            return None
        newest = self.topics[id_].messages_count - 1
        return ConsumerOffset(partition, newest, self.stored[id_])


def make() -> tuple[FakeClock, FakeBroker, Catalogue]:
    clock, broker = FakeClock(), FakeBroker({0: topic(0, 100), 1: topic(1)})
    return clock, broker, Catalogue(replace(system_runtime(), clock=clock), broker)


async def test_rates_are_differences_and_a_fall_is_none() -> None:
    clock, broker, catalogue = make()
    await catalogue.refresh()
    assert catalogue.rates() == (0.0, 0.0)
    clock.now += 2
    broker.topics[0] = topic(0, 150)
    await catalogue.refresh()
    assert catalogue.rates() == (25.0, 250.0)
    clock.now += 2
    await catalogue.refresh()
    assert catalogue.rates() == (0.0, 0.0), "a stream that stopped is read once more"
    asked = len(broker.calls)
    clock.now += 2
    await catalogue.refresh()
    assert len(broker.calls) == asked, "and then no more"
    clock.now += 2
    broker.topics[0] = topic(0, 10)
    await catalogue.refresh()
    assert catalogue.rates() == (0.0, 0.0), "retention took messages away"
    assert [row[1] for row in catalogue.history] == [0.0, 25.0, 0.0, 0.0, 0.0]


async def test_topics_come_go_and_begin_anew() -> None:
    clock, broker, catalogue = make()
    await catalogue.refresh()
    del broker.topics[1]
    broker.topics[2] = topic(2, 5)
    broker.topics[0] = replace(topic(0, 1), created_at_us=9)
    clock.now += 1
    await catalogue.look_again()
    assert [(row.id, row.messages_per_second) for row in catalogue.topic_rows(ROOT)] == [
        (0, 0.0),
        (2, 0.0),
    ]
    some = Permissions(streams=(StreamPermissions(1, read_topics=True),))
    assert len(catalogue.topic_rows(Login("some", may_manage=False, permissions=some))) == 2
    assert catalogue.topic_rows(Login("none", may_manage=False)) == []
    assert catalogue.stream_rows(Login("none", may_manage=False)) == []
    assert catalogue.find("s", "t2") is not None
    assert catalogue.find("s", "t1") is None


async def test_lag_and_where_it_goes() -> None:
    clock, broker, catalogue = make()
    watch = GroupWatch(replace(system_runtime(), clock=clock), broker, catalogue)
    await watch.sample()
    assert broker.calls == [], "nothing is known of the broker yet"
    broker.groups[0] = (Group(7, 1, 0, "g"),)
    await catalogue.refresh()
    await watch.sample()
    (row,) = watch.rows(ROOT)
    assert (row.name, row.lag) == ("g", 100), "nothing stored: all that is retained"
    assert watch.rows(Login("none", may_manage=False)) == []
    broker.stored[0] = 59
    clock.now += 10
    await watch.sample()
    (row,) = watch.rows(ROOT)
    assert (row.lag, row.lag_per_second) == (40, -6.0)
    found = watch.find("s", "t0", "g")
    assert found is not None
    assert [value for _, value in found.history] == [100.0, 40.0]
    broker.groups.clear()
    await watch.sample()
    assert watch.rows(ROOT) == []


async def test_a_sample_asks_for_so_much_and_goes_on_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "TOPICS_A_SAMPLE", 3)
    clock, broker, catalogue = make()
    broker.topics = {number: topic(number, 1) for number in range(8)}
    broker.groups[7] = (Group(1, 1, 0, "last"),)
    watch = GroupWatch(replace(system_runtime(), clock=clock), broker, catalogue)
    await catalogue.refresh()
    for expected in (0, 0, 1):
        broker.calls.clear()
        await watch.sample()
        assert sum(call.startswith("groups") for call in broker.calls) <= 3
        assert len(watch.rows(ROOT)) == expected
