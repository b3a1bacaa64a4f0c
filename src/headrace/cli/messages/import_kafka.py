"""A topic of Kafka into one of Headrace. A position is an offset of a Kafka partition.

Offsets in Kafka have holes (transaction markers, compaction), so a partition is done when Kafka
says that it ends, or a message at or past the end it had at the beginning comes. Nothing is
committed to a group there: the target remembers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.messages.import_sources import ImportFigures, ImportTarget
from headrace.errors import ConfigError, HeadraceError, NotFoundError, UnavailableError
from headrace.transfer.copying import Pace, resume_at, route
from headrace.transfer.delivery import Piece, WindowDelivery
from headrace.transfer.offset_ranges import OffsetRange
from headrace.wire.iggy.columns import build_area
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header

if TYPE_CHECKING:
    from headrace.wire.iggy.batch import Positions

TOMBSTONE = "headrace.tombstone"
SILENCE_SECONDS = 30.0
_POLL_SECONDS = 0.5
_METADATA_SECONDS = 15.0
_VALUE_BYTES_MAX = 255


@dataclass(slots=True)
class _KafkaPartition:
    """A partition under way."""

    span: OffsetRange
    delivery: WindowDelivery
    at: int


class KafkaSource:
    """A consumer that belongs to no group and starts where it is told."""

    def __init__(self, bootstrap: str, topic: str, config: Mapping[str, str]) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            raise ConfigError(
                "importing from Kafka needs confluent-kafka, which is not installed: "
                "pip install 'headrace[kafka]'"
            ) from error
        self._kafka = confluent_kafka
        self.topic = topic
        self._last_error = ""
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": "headrace-import",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._on_error,
            **config,
        }
        try:
            self._consumer = confluent_kafka.Consumer(settings)
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"Kafka's client refuses its settings: {error}") from error

    def _on_error(self, error: Any) -> None:
        self._last_error = str(error)

    async def close(self) -> None:
        await asyncio.to_thread(self._consumer.close)

    async def describe(self) -> tuple[str, list[OffsetRange]]:
        """The cluster's id, and the partitions as they are now."""
        metadata = await self._call(self._consumer.list_topics, self.topic, _METADATA_SECONDS)
        found = metadata.topics.get(self.topic)
        if found is None or found.error is not None or not found.partitions:
            raise NotFoundError(f"Kafka has no topic {self.topic}")
        spans = []
        for number in sorted(found.partitions):
            place = self._kafka.TopicPartition(self.topic, number)
            low, high = await self._call(
                self._consumer.get_watermark_offsets, place, _METADATA_SECONDS
            )
            spans.append(OffsetRange(number, low, high))
        return str(metadata.cluster_id), spans

    def start(self, parts: Iterable[_KafkaPartition]) -> None:
        self._consumer.assign(
            [self._kafka.TopicPartition(self.topic, part.span.partition, part.at) for part in parts]
        )

    async def read(self, count: int) -> tuple[dict[int, list[Any]], set[int]]:
        """Messages by partition, and the partitions that end here."""
        messages: dict[int, list[Any]] = {}
        ended: set[int] = set()
        for one in await self._call(self._consumer.consume, count, _POLL_SECONDS):
            error = one.error()
            if error is None:
                messages.setdefault(one.partition(), []).append(one)
            elif error.code() == self._kafka.KafkaError._PARTITION_EOF:
                ended.add(one.partition())
            elif not error.retriable() or error.fatal():
                raise HeadraceError(f"Kafka: {error}")
            else:
                self._last_error = str(error)
        return messages, ended

    def silence(self) -> UnavailableError:
        return UnavailableError(f"Kafka sends nothing: {self._last_error or 'no answer in time'}")

    async def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(function, *arguments)
        except self._kafka.KafkaException as error:
            raise UnavailableError(f"Kafka: {error} {self._last_error}".rstrip()) from error


async def import_topic(
    target: ImportTarget,
    source: KafkaSource,
    cluster: str,
    spans: Sequence[OffsetRange],
    *,
    rate: float = 0,
    by_key: bool = False,
    accept_loss: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ImportFigures:
    done = ImportFigures()
    parts: dict[int, _KafkaPartition] = {}
    for span in spans:
        identity = {"kafka": cluster, "topic": source.topic}
        delivery = await target.delivery(identity, str(span.partition))
        at = resume_at(span, delivery.last, accept_loss=accept_loss)
        done.before[str(span.partition)] = at
        on_progress(at - span.start)
        if at < span.end:
            parts[span.partition] = _KafkaPartition(span, delivery, at)
    source.start(parts.values())
    pace = Pace(target.client.runtime.clock, rate)
    clock = target.client.runtime.clock
    heard = clock.monotonic()
    while parts:
        messages, ended = await source.read(pace.batch)
        if messages or ended:
            heard = clock.monotonic()
        elif clock.monotonic() - heard > SILENCE_SECONDS:
            raise source.silence()
        for number, group in messages.items():
            part = parts.get(number)
            if part is not None:
                await _publish(target, part, group, len(spans), done, by_key=by_key)
                on_progress(len(group))
                await pace.on_sent(len(group))
                if part.at >= part.span.end:
                    del parts[number]
        for number in ended:
            parts.pop(number, None)
    return done


async def _publish(
    target: ImportTarget,
    part: _KafkaPartition,
    messages: list[Any],
    partitions: int,
    done: ImportFigures,
    *,
    by_key: bool,
) -> None:
    inside = [one for one in messages if one.offset() < part.span.end]
    end = messages[-1].offset() + 1 if len(inside) == len(messages) else part.span.end
    pieces = []
    if inside:
        area, starts = to_area(inside, done)
        counts = (partitions, target.partitions)
        routed = route(area, starts, part.span.partition, counts=counts, by_key=by_key)
        pieces = [Piece(target.stream, target.topic, home, *laid) for home, laid in routed]
    await part.delivery.publish(end, pieces)
    part.at = end
    done.messages += len(inside)


def to_area(messages: Sequence[Any], done: ImportFigures) -> tuple[memoryview, Positions]:
    """Kafka's messages as ours; Kafka's client hands them out one by one."""
    import numpy as np

    payloads, blocks, times = [], [], []
    for one in messages:
        value = one.value()
        headers = _headers(one.headers() or (), done)
        if not value:  # a message here has at least one byte
            value, headers = b"\0", [*headers, UserHeader.of(TOMBSTONE, "1")]
            done.remark("messages without a value, marked as tombstones", 1)
        payloads.append(value)
        blocks.append(key_header(one.key()) + encode_headers(headers))
        kind, milliseconds = one.timestamp()
        times.append(milliseconds * 1000 if kind and milliseconds > 0 else 0)
    return build_area(
        b"".join(payloads),
        np.cumsum([0, *map(len, payloads)]),
        headers_data=b"".join(blocks),
        headers_offsets=np.cumsum([0, *map(len, blocks)]),
        origin_timestamp_us=np.array(times, np.uint64),
    )


def _headers(pairs: Iterable[tuple[str, bytes | None]], done: ImportFigures) -> list[UserHeader]:
    """A value of more than 255 bytes goes on in NAME.1, NAME.2, as a long key does."""
    headers = []
    for name, value in pairs:
        if not name or not value:
            done.remark("headers without a name or a value, left out", 1)
            continue
        for index, begin in enumerate(range(0, len(value), _VALUE_BYTES_MAX)):
            full = f"{name}.{index}" if index else name
            headers.append(UserHeader.of(full, value[begin : begin + _VALUE_BYTES_MAX]))
    return headers
