"""The catalogue as a list of events: decisions, refusals, replay, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from headrace.broker.catalogue import decisions, events
from headrace.broker.catalogue.resources import (
    NEVER,
    ROOT_PERMISSIONS,
    GlobalRight,
    StreamRight,
    log_name,
)
from headrace.broker.catalogue.state import Catalogue
from headrace.errors import FormatError, HeadraceError, NotFoundError
from headrace.wire.iggy import refusals as errors

NOW = 1_700_000_000_000_000
TOPIC: dict[str, Any] = {
    "compression": 1,
    "expiry": 0,
    "max_size": 0,
    "replication": 0,
    "now_us": NOW,
}


class Recorded:
    """A catalogue with the log it would have: every event passes through msgpack."""

    def __init__(self) -> None:
        self.state = Catalogue()
        self.log: list[bytes] = []

    def do(self, event: events.Event) -> Any:
        self.log.append(msgspec.msgpack.encode([events.VERSION, *events.encode(event)]))
        self.state.apply(event)
        return event

    def stream(self, name: str = "s") -> Any:
        return self.do(decisions.create_stream(self.state, name=name, now_us=NOW))

    def topic(self, stream: int | str = "s", name: str = "t", partitions: int = 2) -> Any:
        event = decisions.create_topic(
            self.state, stream, name=name, partitions=partitions, **TOPIC
        )
        return self.do(event)

    def user(self, name: str, permissions: Any = None) -> Any:
        return self.do(
            decisions.create_user(
                self.state,
                name=name,
                password_hash="h:" + name,
                status=1,
                permissions=permissions,
                now_us=NOW,
            )
        )


def replay(log: list[bytes]) -> Catalogue:
    state = Catalogue()
    for record in log:
        state.apply(events.decode(*msgspec.msgpack.decode(record)))
    return state


@pytest.fixture
def shop() -> Recorded:
    r = Recorded()
    r.do(decisions.create_root(r.state, name="iggy", password_hash="h", now_us=NOW))
    r.stream("shop")
    r.stream("other")
    r.topic("shop", "orders", 3)
    r.topic("other", "orders", 1)
    r.do(decisions.create_group(r.state, "shop", "orders", name="g"))
    rights = decisions.resolve_permissions(
        r.state, rights=0, streams={0: (int(StreamRight.READ_STREAM), {0: 4}), 1: (1, {})}
    )
    r.user("ann", rights)
    ann = r.state.user("ann")
    r.do(
        decisions.create_token(r.state, ann, name="laptop", digest=b"d" * 32, expiry_us=5, now_us=9)
    )
    r.do(
        events.PartitionAssigned(
            topic_uid=r.state.topic("shop", "orders").uid, partition=1, generation=0, stream_id=77
        )
    )
    return r


def test_replaying_the_log_gives_the_same_state(shop: Recorded) -> None:
    r = shop
    r.do(decisions.purge_topic(r.state, "shop", "orders"))
    r.do(decisions.create_partitions(r.state, "shop", "orders", count=2, now_us=NOW + 1))
    r.do(decisions.delete_partitions(r.state, "shop", "orders", count=4))
    r.do(decisions.rename_stream(r.state, "other", name="renamed"))
    r.do(decisions.delete_token(r.state, r.state.user("ann"), name="laptop"))
    r.do(decisions.update_user(r.state, "ann", name="anne", status=2))
    assert replay(r.log).dump() == r.state.dump()


def test_snapshot_restores_the_same_state_and_its_indexes(shop: Recorded) -> None:
    shop.do(decisions.delete_topic(shop.state, "other", "orders"))
    version, chunks = shop.state.snapshot()
    copy = Catalogue()
    copy.restore(version, [bytes(chunk) for chunk in chunks])
    assert copy.dump() == shop.state.dump()
    assert copy.user_by_token(b"d" * 32) is not None
    assert copy.topic("shop", "orders").groups[0].name == "g"
    # What happens next is decided the same way.
    assert decisions.create_stream(copy, name="n", now_us=1) == decisions.create_stream(
        shop.state, name="n", now_us=1
    )


def test_a_cut_or_newer_snapshot_is_refused(shop: Recorded) -> None:
    version, chunks = shop.state.snapshot()
    kept = list(chunks)
    with pytest.raises(FormatError):
        Catalogue().restore(version, kept[:-1])
    with pytest.raises(FormatError):
        Catalogue().restore(version + 1, kept)


def test_newer_or_unknown_events_are_refused() -> None:
    with pytest.raises(FormatError):
        events.decode(events.VERSION + 1, "StreamDeleted", {"uid": 1})
    with pytest.raises(FormatError):
        events.decode(events.VERSION, "StreamExploded", {"uid": 1})


def test_every_event_class_is_applied_by_somebody() -> None:
    from headrace.broker.catalogue.state import _APPLY

    assert set(_APPLY) == set(events._KINDS.values())


def test_ids_take_the_lowest_free_slot_and_uids_never_come_back() -> None:
    r = Recorded()
    first, second = r.stream("a"), r.stream("b")
    assert (first.id, second.id) == (0, 1)
    r.do(decisions.delete_stream(r.state, "a"))
    third = r.stream("c")
    assert third.id == 0
    assert third.uid not in (first.uid, second.uid)


def test_permissions_die_with_what_they_were_given_for(shop: Recorded) -> None:
    shop.do(decisions.delete_topic(shop.state, "shop", "orders"))
    shop.do(decisions.delete_stream(shop.state, "other"))
    granted = shop.state.user("ann").permissions
    assert granted is not None
    shop_uid = shop.state.stream("shop").uid
    assert set(granted.streams) == {shop_uid}
    assert granted.streams[shop_uid].topics == {}
    # Another stream under the same number inherits nothing.
    assert shop.stream("new").id == 1
    assert shop.state.stream("new").uid not in granted.streams


def test_purge_starts_a_generation_and_dooms_the_old_logs(shop: Recorded) -> None:
    shop.do(decisions.purge_stream(shop.state, "shop"))
    topic = shop.state.topic("shop", "orders")
    assert [p.generation for p in topic.partitions] == [1, 1, 1]
    assert [p.stream_id for p in topic.partitions] == [-1, -1, -1]
    assert shop.state.doomed == {77}
    shop.do(events.StreamsReclaimed(stream_ids=[77]))
    assert shop.state.doomed == set()


def test_a_partition_made_again_has_another_log_name(shop: Recorded) -> None:
    def names() -> list[str]:
        topic = shop.state.topic("shop", "orders")
        return [log_name(topic.uid, p.id, p.generation) for p in topic.partitions]

    before = names()
    shop.do(decisions.delete_partitions(shop.state, "shop", "orders", count=2))
    shop.do(decisions.create_partitions(shop.state, "shop", "orders", count=2, now_us=NOW))
    after = names()
    assert after[0] == before[0]
    assert not set(after[1:]) & set(before)
    shop.do(decisions.purge_topic(shop.state, "shop", "orders"))
    assert not set(names()) & (set(before) | set(after))


def test_a_log_assigned_to_a_partition_that_is_gone_is_doomed(shop: Recorded) -> None:
    topic = shop.state.topic("shop", "orders")
    shop.do(decisions.purge_topic(shop.state, "shop", "orders"))
    shop.do(events.PartitionAssigned(topic_uid=topic.uid, partition=0, generation=0, stream_id=88))
    assert shop.state.doomed == {77, 88}
    assert topic.partitions[0].stream_id == -1


def test_token_expiry_counts_from_now() -> None:
    r = Recorded()
    r.user("ann")
    ann = r.state.user("ann")

    def expiry_at(expiry_us: int) -> int:
        event = decisions.create_token(
            r.state, ann, name="tok", digest=b"", expiry_us=expiry_us, now_us=NOW
        )
        return event.expiry_at

    assert expiry_at(5) == NOW + 5
    assert expiry_at(0) == expiry_at(NEVER) == 0
    assert expiry_at(NEVER - 1) == NEVER


def _c(action: Callable[[Catalogue], object]) -> Callable[[Catalogue], object]:
    return action


@pytest.mark.parametrize(
    ("refusal", "action"),
    [
        (errors.StreamExistsError, _c(lambda s: decisions.create_stream(s, name="shop", now_us=0))),
        (
            errors.InvalidStreamNameError,
            _c(lambda s: decisions.create_stream(s, name="", now_us=0)),
        ),
        (
            errors.InvalidStreamNameError,
            _c(lambda s: decisions.create_stream(s, name="ü" * 128, now_us=0)),
        ),
        (errors.StreamExistsError, _c(lambda s: decisions.rename_stream(s, "shop", name="other"))),
        (errors.StreamNotFoundError, _c(lambda s: decisions.delete_stream(s, 9))),
        (errors.TopicNotFoundError, _c(lambda s: decisions.delete_topic(s, "shop", "nope"))),
        (
            errors.TopicExistsError,
            _c(lambda s: decisions.create_topic(s, 0, name="orders", partitions=1, **TOPIC)),
        ),
        (
            errors.TooManyPartitionsError,
            _c(lambda s: decisions.create_topic(s, 0, name="x", partitions=1001, **TOPIC)),
        ),
        (
            errors.TooManyPartitionsError,
            _c(lambda s: decisions.create_partitions(s, 0, 0, count=0, now_us=0)),
        ),
        (
            errors.InvalidPartitionsCountError,
            _c(lambda s: decisions.delete_partitions(s, 0, 0, count=4)),
        ),
        (errors.GroupExistsError, _c(lambda s: decisions.create_group(s, 0, 0, name="g"))),
        (errors.InvalidGroupNameError, _c(lambda s: decisions.create_group(s, 0, 0, name=""))),
        (errors.GroupNotFoundError, _c(lambda s: decisions.delete_group(s, 0, 0, "h"))),
        (errors.RootUserError, _c(lambda s: decisions.delete_user(s, 0))),
        (errors.RootPermissionsError, _c(lambda s: decisions.change_permissions(s, "iggy", None))),
        (NotFoundError, _c(lambda s: decisions.delete_user(s, "bob"))),
        (
            errors.UserExistsError,
            _c(lambda s: decisions.update_user(s, "ann", name="iggy", status=None)),
        ),
        (
            errors.InvalidUserStatusError,
            _c(lambda s: decisions.update_user(s, "ann", name=None, status=3)),
        ),
        (
            errors.InvalidCredentialsError,
            _c(
                lambda s: decisions.change_password(
                    s, "ann", verified_hash="older", password_hash="new"
                )
            ),
        ),
        (
            errors.StreamNotFoundError,
            _c(lambda s: decisions.resolve_permissions(s, rights=0, streams={5: (1, {})})),
        ),
        (
            errors.TopicNotFoundError,
            _c(lambda s: decisions.resolve_permissions(s, rights=0, streams={0: (1, {5: 1})})),
        ),
        (
            errors.TokenExistsError,
            _c(
                lambda s: decisions.create_token(
                    s, s.user("ann"), name="laptop", digest=b"", expiry_us=0, now_us=0
                )
            ),
        ),
        (NotFoundError, _c(lambda s: decisions.delete_token(s, s.user("ann"), name="nope"))),
    ],
)
def test_refusals(
    shop: Recorded, refusal: type[HeadraceError], action: Callable[[Catalogue], object]
) -> None:
    before = shop.state.dump()
    with pytest.raises(refusal):
        action(shop.state)
    assert shop.state.dump() == before


def test_names_may_be_kept_in_an_update(shop: Recorded) -> None:
    shop.do(decisions.rename_stream(shop.state, "shop", name="shop"))
    shop.do(decisions.update_user(shop.state, "ann", name="ann", status=None))
    assert shop.state.stream("shop").id == 0
    assert shop.state.user("ann").active


def test_root_may_do_everything() -> None:
    assert ROOT_PERMISSIONS.rights == sum(1 << bit for bit in range(10)) == GlobalRight.ALL


def test_topics_are_found_by_their_present_name_only() -> None:
    r = Recorded()
    for stream in ("s", "other"):
        r.stream(stream)
        r.topic(stream, "t")
    change: dict[str, Any] = {"compression": 1, "expiry": 0, "max_size": 0, "replication": 1}
    r.do(decisions.update_topic(r.state, "s", "t", name="renamed", **change))
    r.do(decisions.rename_stream(r.state, "s", name="stream"))
    version, chunks = r.state.snapshot()
    restored = Catalogue()
    restored.restore(version, list(chunks))
    for state in (r.state, replay(r.log), restored):
        assert state.find_topic("stream", "t") is None
        assert state.topic("stream", "renamed") is state.topic("stream", 0)
        assert state.topic("other", "t") is state.topic("other", 0)
    again = r.topic("stream", "t")
    assert r.state.topic("stream", "t").uid == again.uid
    r.do(decisions.delete_topic(r.state, "stream", "t"))
    assert r.state.find_topic("stream", "t") is None
    r.do(decisions.delete_stream(r.state, "other"))
    r.stream("other")
    assert r.state.find_topic("other", "t") is None


def test_pins_are_kept_and_older_snapshots_have_none(shop: Recorded) -> None:
    version, chunks = shop.state.snapshot()
    before = list(chunks)
    head = msgspec.msgpack.decode(before[0])
    del head["pins"]
    older = Catalogue()
    older.restore(version, [msgspec.msgpack.encode(head), *before[1:]])
    assert older.pins == {}
    shop.do(events.ShardPinned(3, "a"))
    shop.do(events.ShardPinned(4, "a"))
    shop.do(events.ShardPinned(4, ""))
    shop.do(events.ShardPinned(5, ""))
    copy = Catalogue()
    copy.restore(*shop.state.snapshot())
    assert copy.pins == replay(shop.log).pins == {3: "a"}


def test_partitions_of_the_first_shard_go_where_new_ones_would() -> None:
    r = Recorded()
    r.stream()
    made = r.topic(partitions=5)
    (topic,) = r.state.topics()
    new = [partition.shard for partition in topic.partitions]
    assert decisions.spread_partitions(r.state) == []
    r.do(events.PartitionsMoved([(made.uid, n, 0, 0) for n in range(5)]))
    assert {partition.shard for partition in topic.partitions} == {0}
    (event,) = decisions.spread_partitions(r.state)
    r.do(event)
    assert [partition.shard for partition in topic.partitions] == new
    r.do(events.PartitionsMoved([(made.uid, 9, 0, 3), (made.uid, 1, 7, 3), (99, 0, 0, 3)]))
    assert [partition.shard for partition in topic.partitions] == new, "none of them is there"
    assert replay(r.log).dump() == r.state.dump()
