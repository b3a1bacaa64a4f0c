"""A plain Iggy server in memory: what the connector meets where nobody knows Headrace's commands.

It answers the commands that the connector uses, and HELLO as every Iggy server does: "invalid
command". It runs on a thread with a loop of its own, because the tests' threads wait for Spark.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.net.iggy_server import Answer, IggyServer
from headrace.runtime.interfaces import Buffer, Connection
from headrace.runtime.system import system_runtime
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.batch import locate, stamp
from headrace.wire.iggy.columns import columns
from headrace.wire.iggy.errors import Status
from headrace.wire.iggy.messages import consumers, topics, users
from headrace.wire.iggy.messages import consumers as groups
from headrace.wire.iggy.messages.messages import PolledMessages, PollMessages, SendMessages
from headrace.wire.iggy.messages.topics import Compression, PartitionInfo, Topic, TopicDetails
from headrace.wire.iggy.primitives import PartitioningKind, StrategyKind


@dataclass
class _Topic:
    created_at_us: int
    partitions: list[bytearray]
    counts: list[int]
    turn: int = 0
    trimmed: int = 0  # messages that every partition lost at its front
    groups: dict[str, dict[int, int]] = field(default_factory=dict)  # stored offsets by partition


@dataclass
class PlainServer:
    known_topics: dict[tuple[str, str], _Topic] = field(default_factory=dict)
    known_streams: set[str] = field(default_factory=set)
    address: str = ""
    sends: int = 0
    _clock: int = 1_700_000_000_000_000

    def start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = IggyServer[None](
            system_runtime(),
            open_session=self._open,
            on_request=self._on_request,
            close_session=lambda session: None,
        )
        asyncio.run_coroutine_threadsafe(self._server.start("127.0.0.1", 0), self._loop).result()
        self.address = self._server.address

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _open(self, connection: Connection) -> None: ...

    async def _on_request(
        self, session: None, code: int, payload: memoryview, head: object = None
    ) -> Answer:
        command = c.TABLE.get(code)
        handler = self._handlers().get(code)
        if command is None or handler is None:
            return Status.INVALID_COMMAND, ()
        answer: Any = handler(command.decode_request(payload))
        if isinstance(answer, Status):
            return answer, ()
        pieces: Sequence[Buffer] = command.encode_response(answer) if answer is not None else ()
        return Status.OK, pieces

    def _handlers(self) -> dict[int, Callable[[Any], object]]:
        return {
            c.LOGIN_USER.code: lambda request: (
                users.Identity(0) if request.password == "secret" else Status.INVALID_CREDENTIALS
            ),
            c.CREATE_STREAM.code: self._create_stream,
            c.CREATE_TOPIC.code: self._create_topic,
            c.DELETE_TOPIC.code: self._delete_topic,
            c.GET_TOPIC.code: self._get_topic,
            c.GET_TOPICS.code: self._get_topics,
            c.CREATE_PARTITIONS.code: self._create_partitions,
            c.CREATE_CONSUMER_GROUP.code: self._create_group,
            c.STORE_CONSUMER_OFFSET.code: self._store_offset,
            c.SEND_MESSAGES.code: self._send,
            c.POLL_MESSAGES.code: self._poll,
        }

    def _now(self) -> int:
        self._clock += 1_000_000
        return self._clock

    def _create_stream(self, request: topics.CreateStream) -> object:
        if request.name in self.known_streams:
            return Status.STREAM_NAME_ALREADY_EXISTS
        self.known_streams.add(request.name)
        stream = topics.Stream(0, self._now(), 0, 0, 0, request.name)
        return topics.StreamDetails(stream)

    def _create_topic(self, request: topics.CreateTopic) -> object:
        key = (str(request.stream), request.name)
        if key in self.known_topics:
            return Status.TOPIC_NAME_ALREADY_EXISTS
        count = request.partitions_count
        self.known_topics[key] = _Topic(
            self._now(), [bytearray() for _ in range(count)], [0] * count
        )
        return self._details(*key)

    def _delete_topic(self, request: topics.DeleteTopic) -> object:
        del self.known_topics[str(request.stream), str(request.topic)]
        return None

    def _get_topic(self, request: topics.GetTopic) -> TopicDetails | None:
        return self._details(str(request.stream), str(request.topic))

    def _get_topics(self, request: topics.GetTopics) -> topics.Topics:
        mine = [key for key in self.known_topics if key[0] == str(request.stream)]
        found = [self._details(*key) for key in mine]
        return topics.Topics(tuple(each.topic for each in found if each is not None))

    def _create_partitions(self, request: topics.CreatePartitions) -> object:
        topic = self.known_topics[str(request.stream), str(request.topic)]
        topic.partitions += [bytearray() for _ in range(request.partitions_count)]
        topic.counts += [0] * request.partitions_count
        return None

    def _create_group(self, request: groups.CreateGroup) -> object:
        topic = self.known_topics[str(request.stream), str(request.topic)]
        if request.name in topic.groups:
            return Status.CONSUMER_GROUP_NAME_ALREADY_EXISTS
        topic.groups[request.name] = {}
        return groups.GroupDetails(groups.Group(0, len(topic.partitions), 0, request.name))

    def _store_offset(self, request: consumers.StoreConsumerOffset) -> object:
        topic = self.known_topics[str(request.stream), str(request.topic)]
        assert request.partition is not None
        topic.groups[str(request.consumer.id)][request.partition] = request.offset
        return None

    def _details(self, stream: str, name: str) -> TopicDetails | None:
        topic = self.known_topics.get((stream, name))
        if topic is None:
            return None
        partitions = tuple(
            PartitionInfo(
                i, topic.created_at_us, 1, max(0, count - 1), len(log), count - topic.trimmed
            )
            for i, (log, count) in enumerate(zip(topic.partitions, topic.counts, strict=True))
        )
        size, total = sum(map(len, topic.partitions)), sum(topic.counts)
        head = Topic(
            0, topic.created_at_us, len(partitions), 0, Compression.NONE, 0, 1, size, total, name
        )
        return TopicDetails(head, partitions)

    def _send(self, request: SendMessages) -> object:
        topic = self.known_topics.get((str(request.stream), str(request.topic)))
        if topic is None:
            return Status.TOPIC_ID_NOT_FOUND
        self.sends += 1
        where = request.partitioning
        if where.kind is PartitioningKind.PARTITION:
            index = where.partition
        else:
            index, topic.turn = topic.turn % len(topic.partitions), topic.turn + 1
        area = bytearray(request.area)
        stamp(
            area,
            request.starts,
            base_offset=topic.counts[index],
            timestamp_us=self._now(),
            new_ids=lambda count: b"".join(i.to_bytes(16, "little") for i in range(1, count + 1)),
        )
        topic.partitions[index] += area
        topic.counts[index] += len(request.starts)
        return None

    def _poll(self, request: PollMessages) -> object:
        topic = self.known_topics[str(request.stream), str(request.topic)]
        assert request.partition is not None
        log = bytes(topic.partitions[request.partition])
        count = topic.counts[request.partition]
        first = request.strategy.value
        if request.strategy.kind is StrategyKind.TIMESTAMP:
            times = columns(log, locate(log)).timestamp_us.tolist() if log else []
            first = sum(each < request.strategy.value for each in times)
        first = max(first, topic.trimmed)
        last = min(count, first + request.count)
        slices: tuple[bytes, ...] = ()
        if first < last:
            starts = [*locate(log).tolist(), len(log)]
            slices = (log[starts[first] : starts[last]],)
        return PolledMessages(request.partition, max(0, count - 1), last - first, slices)
