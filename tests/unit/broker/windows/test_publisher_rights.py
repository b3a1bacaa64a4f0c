"""Who may open a publisher, whose it is then, and how many one may have."""

from __future__ import annotations

import msgspec
import pytest

from headrace.broker.windows.publishers import Publishers, encode
from headrace.errors import HeadraceError
from headrace.net.credentials import Scope, make_grant, narrow_grant
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages import extensions as x
from headrace.wire.iggy.messages import users as u
from tests.unit.broker.harness import NOW_US, QUICK, code_of, opened
from tests.unit.broker.sessions.test_principals import (
    HOUR_MS,
    MANAGER,
    SECRET,
    add,
    shop,
    with_grant,
)
from tests.unit.broker.windows.test_publishing import close, open_, stage, topic

SENDER = u.Permissions(u.GlobalPermissions(send_messages=True))


async def test_a_task_stages_what_its_driver_publishes() -> None:
    async with opened() as h:
        root = await h.root()
        await root.stream()
        await root.topic(name="t")
        text = make_grant(
            SECRET,
            Scope(exp=NOW_US // 1000 + HOUR_MS, holder="pipeline shop", writes=("s/t",),
                  publishers=("spark/*",)),
        )  # fmt: skip
        lent = Scope(
            exp=NOW_US // 1000 + HOUR_MS, writes=("s/t",), publishers=("spark/1",), closes=False
        )
        driver, task = await with_grant(h, text), await with_grant(h, narrow_grant(text, lent))
        publisher = await open_(driver, name="spark/1")
        assert await open_(task, name="spark/1") == publisher
        assert await code_of(open_(task, name="spark/2")) == 41
        span = await stage(task, publisher, 0, 0, b"x")
        assert await code_of(close(task, publisher, 0, [span])) == 41
        await close(driver, publisher, 0, [span])
        assert len((await root.poll()).slices) == 1


async def test_containers_go_on_with_what_was_published_as_root() -> None:
    async with opened() as h:
        root = await h.root()
        await topic(root, 1)
        before = await open_(root, name="spark/1")
        container = await with_grant(h, shop())
        after = await open_(container, run="2", name="spark/1")
        assert (after.publisher, after.epoch) == (before.publisher, before.epoch + 1)
        assert await code_of(open_(root, run="3", name="spark/1")) == 41
        assert await code_of(open_(container, name="pipeline/other/valid/0")) == 41


async def test_a_publisher_is_for_who_may_write() -> None:
    async with opened() as h:
        root = await h.root()
        await topic(root)
        nobody = await add(h, "nobody")
        manager = await add(h, "manager", MANAGER)
        for name in ("s/t", "shop/revenue", "anything"):
            assert await code_of(open_(nobody, name=name)) == 41
            assert await code_of(open_(manager, name=name)) == 41
        one = u.Permissions(
            u.GlobalPermissions(),
            (u.StreamPermissions(0, topics=(u.TopicPermissions(0, send_messages=True),)),),
        )
        await root.topic(name="other")
        ann = await add(h, "ann", one)
        await open_(ann, name="s/t")
        assert await code_of(open_(ann, name="s/other")) == 41
        await open_(ann, name="mine")


async def test_a_window_topics_publisher_belongs_to_who_may_write_to_it() -> None:
    """Whoever was there before the topic was: a name cannot be kept from it."""
    async with opened() as h:
        root = await h.root()
        await topic(root, 1)
        eve = await add(h, "eve", SENDER)
        assert await code_of(open_(eve, name="pipeline/shop/valid/0")) == 41
        await open_(eve, name="valid")
        names = x.SetPublishers(stream="s", topic="t", publishers=("valid",))
        await root.call(c.SET_PUBLISHERS, names)
        opened_ = await open_(root, run="2", name="valid")
        await close(root, opened_, 0)


async def test_nobody_takes_all_the_publishers_there_are() -> None:
    settings = msgspec.structs.replace(QUICK, publishers_max=10, publishers_per_user_max=4)
    async with opened(settings=settings) as h:
        root = await h.root()
        await topic(root)
        eve = await add(h, "eve", SENDER)
        for number in range(4):
            await open_(eve, name=f"eve {number}")
        assert await code_of(open_(eve, name="one more")) == 9104
        await open_(eve, run="2", name="eve 0")
        await open_(root, name="root's")


def test_an_owner_that_changed_is_the_owner_after_a_restart() -> None:
    first = Publishers(publishers_max=10, windows_kept=10)
    for owner, heir_of in ((1, ()), (2, (1,))):
        event = first.open("p", str(owner), owner, heir_of=heir_of)
        assert event is not None
        kind, body = _encoded(event)
        first.apply(1, kind, body)
    second = Publishers(publishers_max=10, windows_kept=10)
    second.restore(*first.snapshot())
    second.check_owner(second.named("p").uid, (2,))  # type: ignore[union-attr]  # it was opened
    with pytest.raises(HeadraceError):
        second.check_owner(second.named("p").uid, (1,))  # type: ignore[union-attr]  # likewise


def _encoded(event: object) -> tuple[str, object]:
    return encode(event)  # type: ignore[arg-type]  # an event of its
