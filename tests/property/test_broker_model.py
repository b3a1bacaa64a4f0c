"""The broker's pure state against a model of plain dictionaries.

Whatever is asked in whatever order: decisions and the model agree on what exists, uids never come
back, logs of dead partitions are doomed and never shared, group assignments cover every partition
exactly once, offsets survive exactly as long as what they belong to; and replaying the log or
restoring a snapshot gives the same state.
"""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headrace.broker.catalogue import decisions, events
from headrace.broker.catalogue.groups import Membership
from headrace.broker.catalogue.state import Catalogue
from headrace.broker.partitions.offsets import (
    EVENT,
    VERSION,
    Kind,
    LoggedOffsets,
    Offsets,
    Place,
    Reader,
    StoredOffset,
)
from headrace.errors import RequestError

NAMES = st.sampled_from(["a", "b", "c"])
CLIENTS = st.integers(1, 4)


class BrokerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = Catalogue()
        self.log: list[bytes] = []
        self.membership = Membership()
        self.offsets = Offsets()
        self.offsets_log: list[bytes] = []
        self.uids: set[int] = set()
        self.log_ids: set[int] = set()
        self.next_log_id = 1000
        # stream -> topic -> [number of partitions, groups: name -> clients in join order]
        self.model: dict[str, dict[str, tuple[list[int], dict[str, list[int]]]]] = {}
        self.model_offsets: dict[tuple[Place, Reader], int] = {}

    def commit(self, decide: Any, expected: bool) -> None:
        """Decide and apply; `expected` is whether the model thinks it is allowed."""
        before = self.state.dump()
        try:
            event = decide()
        except RequestError:
            assert not expected
            assert self.state.dump() == before
            return
        assert expected
        self.log.append(msgspec.msgpack.encode([events.VERSION, *events.encode(event)]))
        self.state.apply(events.decode(*msgspec.msgpack.decode(self.log[-1])))
        if "Created" in type(event).__name__:
            assert event.uid not in self.uids
            self.uids.add(event.uid)
        self.reconcile()

    def reconcile(self) -> None:
        """As the broker does after each structural event."""
        for uid in self.membership.groups():
            found = self.state.group_by_uid(uid)
            if found is None:
                self.membership.drop_group(uid)
            else:
                self.membership.assign(uid, partitions=len(found[0].partitions))
        self.offsets.retain(
            place=lambda p: self.state.find_partition(*p) is not None,
            reader=lambda r: (
                r.kind == Kind.CONSUMER or self.state.group_by_uid(r.consumer) is not None
            ),
        )
        self.model_offsets = {
            key: offset for key, offset in self.model_offsets.items() if self.lives(*key)
        }

    def lives(self, place: Place, reader: Reader) -> bool:
        for stream, topics in self.model.items():
            for name in topics:
                topic = self.state.topic(stream, name)
                if topic.uid == place.topic_uid:
                    same = [p for p in topic.partitions if p.id == place.partition]
                    if not same or same[0].generation != place.generation:
                        return False
                    groups = {g.uid for g in topic.groups.values()}
                    return reader.kind == Kind.CONSUMER or reader.consumer in groups
        return False

    # -- streams and topics

    @rule(name=NAMES)
    def create_stream(self, name: str) -> None:
        allowed = name not in self.model
        if allowed:
            self.model[name] = {}
        self.commit(
            lambda: decisions.create_stream(self.state, name=name, now_us=1), expected=allowed
        )

    @rule(name=NAMES)
    def delete_stream(self, name: str) -> None:
        allowed = self.model.pop(name, None) is not None
        self.commit(lambda: decisions.delete_stream(self.state, name), expected=allowed)

    @rule(name=NAMES, new=NAMES)
    def rename_stream(self, name: str, new: str) -> None:
        allowed = name in self.model and (new == name or new not in self.model)
        if allowed:
            self.model = {new if k == name else k: v for k, v in self.model.items()}
        self.commit(lambda: decisions.rename_stream(self.state, name, name=new), expected=allowed)

    @rule(stream=NAMES, name=NAMES, partitions=st.integers(0, 3))
    def create_topic(self, stream: str, name: str, partitions: int) -> None:
        allowed = stream in self.model and name not in self.model[stream]
        if allowed:
            self.model[stream][name] = ([partitions], {})
        self.commit(
            lambda: decisions.create_topic(
                self.state,
                stream,
                name=name,
                partitions=partitions,
                compression=1,
                expiry=0,
                max_size=0,
                replication=0,
                now_us=1,
            ),
            expected=allowed,
        )

    def exists(self, stream: str, topic: str) -> bool:
        return topic in self.model.get(stream, {})

    @rule(stream=NAMES, name=NAMES)
    def delete_topic(self, stream: str, name: str) -> None:
        allowed = self.model.get(stream, {}).pop(name, None) is not None
        self.commit(lambda: decisions.delete_topic(self.state, stream, name), expected=allowed)

    @rule(stream=NAMES, name=NAMES)
    def purge(self, stream: str, name: str) -> None:
        allowed = self.exists(stream, name)
        self.commit(lambda: decisions.purge_topic(self.state, stream, name), expected=allowed)

    @rule(stream=NAMES, name=NAMES, count=st.integers(0, 3))
    def add_partitions(self, stream: str, name: str, count: int) -> None:
        allowed = self.exists(stream, name) and count > 0
        if allowed:
            self.model[stream][name][0][0] += count
        self.commit(
            lambda: decisions.create_partitions(self.state, stream, name, count=count, now_us=2),
            expected=allowed,
        )

    @rule(stream=NAMES, name=NAMES, count=st.integers(0, 3))
    def remove_partitions(self, stream: str, name: str, count: int) -> None:
        allowed = self.exists(stream, name) and 0 < count <= self.model[stream][name][0][0]
        if allowed:
            self.model[stream][name][0][0] -= count
        self.commit(
            lambda: decisions.delete_partitions(self.state, stream, name, count=count),
            expected=allowed,
        )

    @precondition(lambda self: any(t[0][0] for s in self.model.values() for t in s.values()))
    @rule(data=st.data())
    def assign_log(self, data: Any) -> None:
        topics = [t for t in self.state.topics() if t.partitions]
        topic = data.draw(st.sampled_from(topics))
        partition = data.draw(st.sampled_from(topic.partitions))
        if partition.stream_id == -1:
            self.next_log_id += 1
            event = events.PartitionAssigned(
                topic_uid=topic.uid,
                partition=partition.id,
                generation=partition.generation,
                stream_id=self.next_log_id,
            )
            self.commit(lambda: event, expected=True)
            self.log_ids.add(self.next_log_id)

    # -- groups and offsets

    @rule(stream=NAMES, topic=NAMES, name=NAMES)
    def create_group(self, stream: str, topic: str, name: str) -> None:
        allowed = self.exists(stream, topic) and name not in self.model[stream][topic][1]
        if allowed:
            self.model[stream][topic][1][name] = []
        self.commit(
            lambda: decisions.create_group(self.state, stream, topic, name=name), expected=allowed
        )

    @rule(stream=NAMES, topic=NAMES, name=NAMES)
    def delete_group(self, stream: str, topic: str, name: str) -> None:
        groups = self.model[stream][topic][1] if self.exists(stream, topic) else {}
        allowed = groups.pop(name, None) is not None
        self.commit(
            lambda: decisions.delete_group(self.state, stream, topic, name), expected=allowed
        )

    def drawn_group(self, data: Any) -> tuple[str, str, str] | None:
        known = [
            (s, t, g) for s, topics in self.model.items() for t in topics for g in topics[t][1]
        ]
        return data.draw(st.sampled_from(known)) if known else None

    @rule(data=st.data(), client=CLIENTS)
    def join(self, data: Any, client: int) -> None:
        drawn = self.drawn_group(data)
        if drawn is not None:
            stream, topic, name = drawn
            found = self.state.topic(stream, topic)
            group = next(g for g in found.groups.values() if g.name == name)
            self.membership.join(group.uid, client, partitions=len(found.partitions))
            joined = self.model[stream][topic][1][name]
            if client not in joined:
                joined.append(client)

    @rule(client=CLIENTS)
    def disconnect(self, client: int) -> None:
        for uid in self.membership.groups_of(client):
            found = self.state.group_by_uid(uid)
            assert found is not None
            self.membership.leave(uid, client, partitions=len(found[0].partitions))
        for topics in self.model.values():
            for _, groups in topics.values():
                for joined in groups.values():
                    if client in joined:
                        joined.remove(client)

    @rule(data=st.data(), offset=st.integers(-1, 50), group=st.booleans())
    def store_offset(self, data: Any, offset: int, group: bool) -> None:
        topics = [t for t in self.state.topics() if t.partitions and (t.groups or not group)]
        if not topics:
            return
        topic = data.draw(st.sampled_from(topics))
        partition = data.draw(st.sampled_from(topic.partitions))
        place = Place(topic.uid, partition.id, partition.generation)
        if group:
            reader = Reader(Kind.GROUP, data.draw(st.sampled_from(list(topic.groups.values()))).uid)
        else:
            reader = Reader(Kind.CONSUMER, data.draw(st.integers(0, 3)))
        body = [[*place, *reader, offset]]
        self.offsets_log.append(msgspec.msgpack.encode(body))
        LoggedOffsets(self.offsets, lambda _: False).apply(VERSION, EVENT, body)
        if offset == -1:
            self.model_offsets.pop((place, reader), None)
        else:
            self.model_offsets[place, reader] = offset

    @rule(data=st.data(), end=st.integers(0, 20))
    def clamp(self, data: Any, end: int) -> None:
        """A log that came back shorter."""
        if not self.model_offsets:
            return
        place, _ = data.draw(st.sampled_from(sorted(self.model_offsets)))
        for entry in self.offsets.beyond(place, end):
            self.offsets_log.append(msgspec.msgpack.encode([[*place, *entry.reader, entry.offset]]))
            self.offsets.put(entry)
        for key in list(self.model_offsets):
            if key[0] == place and self.model_offsets[key] >= end:
                self.model_offsets[key] = end - 1
                if end == 0:
                    del self.model_offsets[key]

    # -- what always holds

    @invariant()
    def model_agrees(self) -> None:
        shape = {
            s.name: {
                t.name: (len(t.partitions), {g.name for g in t.groups.values()})
                for t in s.topics.values()
            }
            for s in self.state.streams.values()
        }
        assert shape == {
            s: {t: (count[0], set(groups)) for t, (count, groups) in topics.items()}
            for s, topics in self.model.items()
        }
        assert sorted(self.state.streams) == sorted(s.id for s in self.state.streams.values())

    @invariant()
    def every_partition_has_one_member(self) -> None:
        for stream, topics in self.model.items():
            for name, (count, groups) in topics.items():
                topic = self.state.topic(stream, name)
                for group in topic.groups.values():
                    members = self.membership.members(group.uid)
                    assert [m.client_id for m in members] == groups[group.name]
                    shared = sorted(p for m in members for p in m.partitions)
                    assert shared == (list(range(count[0])) if members else [])
                    sizes = [len(m.partitions) for m in members]
                    assert not sizes or max(sizes) - min(sizes) <= 1

    @invariant()
    def every_log_is_used_once_or_doomed(self) -> None:
        used = [p.stream_id for t in self.state.topics() for p in t.partitions if p.stream_id >= 0]
        assert len(used) == len(set(used))
        assert not set(used) & self.state.doomed
        assert set(used) | self.state.doomed == self.log_ids

    @invariant()
    def offsets_agree(self) -> None:
        stored = {(entry.place, entry.reader): entry.offset for entry in self.offsets.entries()}
        assert stored == self.model_offsets

    def teardown(self) -> None:
        replayed = Catalogue()
        for record in self.log:
            replayed.apply(events.decode(*msgspec.msgpack.decode(record)))
        assert replayed.dump() == self.state.dump()
        restored = Catalogue()
        version, chunks = self.state.snapshot()
        restored.restore(version, list(chunks))
        assert restored.dump() == self.state.dump()
        self._replay_offsets()

    def _replay_offsets(self) -> None:
        replayed = Offsets()
        for record in self.offsets_log:
            LoggedOffsets(replayed, lambda _: False).apply(
                VERSION, EVENT, msgspec.msgpack.decode(record)
            )
        replayed.retain(
            place=lambda p: self.state.find_partition(*p) is not None,
            reader=lambda r: (
                r.kind == Kind.CONSUMER or self.state.group_by_uid(r.consumer) is not None
            ),
        )
        key = [sorted(offsets.entries()) for offsets in (replayed, self.offsets)]
        assert key[0] == key[1]


TestBrokerModel = BrokerModel.TestCase
TestBrokerModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_the_model_notices_a_lost_entry() -> None:
    """A model that cannot fail proves nothing."""
    offsets = Offsets()
    offsets.put(StoredOffset(Place(1, 0, 0), Reader(Kind.CONSUMER, 1), 5))
    machine = BrokerModel()
    machine.offsets = offsets
    try:
        machine.offsets_agree()
    except AssertionError:
        return
    raise AssertionError("the invariant accepted an entry the model does not know")
