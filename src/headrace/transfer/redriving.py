"""Sending dead letters on their way again, each once unless somebody asks for more.

Letters go back to the topic and partition they came from, in the order they were set aside, or to
a topic that is named. A run that is cut off anywhere and started again sends nothing twice: what it
published and where it stands are one step of the broker (`delivery.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import xxhash

from headrace.client.iggy import IggyClient
from headrace.errors import InvalidArgumentError, NotFoundError
from headrace.transfer.dead_letters import (
    POLL_MESSAGES,
    REDRIVE_COUNT,
    Letter,
    Memory,
    letter_topic,
    parse_letter,
    read_letters,
)
from headrace.transfer.delivery import Piece, WindowDelivery
from headrace.wire.iggy.messages.extensions import TicketPartition, TicketTopic
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers, key_header

OnProgress = Callable[[int], None]
"""Told how many letters more are dealt with."""


@dataclass(slots=True)
class Redriven:
    """What a run did, or would do."""

    sent: dict[str, int] = field(default_factory=dict)
    """Letters by the topic they went to."""
    known: int = 0
    """Left alone: they were re-driven before."""
    homeless: int = 0
    """Left alone: nobody knows where they belong."""

    @property
    def letters(self) -> int:
        return sum(self.sent.values())

    def add(self, other: Redriven) -> None:
        for topic, count in other.sent.items():
            self.sent[topic] = self.sent.get(topic, 0) + count
        self.known += other.known
        self.homeless += other.homeless


@dataclass(frozen=True, slots=True)
class _Home:
    stream: str
    topic: str
    partition: int | None


class Redriving:
    """One run over a letter topic. `to` names another topic than those the letters came from."""

    def __init__(
        self,
        client: IggyClient,
        stream: str,
        topic: str,
        *,
        to: tuple[str, str] | None = None,
        again: bool = False,
        skip_homeless: bool = False,
        dry_run: bool = False,
        on_progress: OnProgress = lambda _: None,
    ) -> None:
        self._client = client
        self._stream, self._topic = stream, topic
        self._to = to
        self._again = again
        self._skip_homeless = skip_homeless
        self._dry_run = dry_run
        self._on_progress = on_progress
        self._run = client.runtime.random.uuid().hex
        self._user = 0
        self._partition_counts: dict[tuple[str, str], int] = {}
        self._done = Redriven()

    async def all(self) -> Redriven:
        """Every letter that waits now; those that come meanwhile wait for the next run."""
        found = await self._start()
        for partition in found.partitions:
            await self._redrive_partition(found, partition)
        return self._done

    async def chosen(self, offsets: Mapping[int, Collection[int]]) -> Redriven:
        """These, by partition. NotFoundError names one that is missing, before anything is sent."""
        found = await self._start()
        generations = {each.partition: each.generation for each in found.partitions}
        for number in offsets:
            if number not in generations:
                raise NotFoundError(f"{self._stream}/{self._topic} has no partition {number}")
        letters = {
            number: await read_letters(self._client, self._stream, self._topic, number, wanted)
            for number, wanted in offsets.items()
        }
        for number, wanted_letters in letters.items():
            name = f"{found.uid}.{number}.{generations[number]}"
            await self._redrive_chosen(name, number, wanted_letters)
        return self._done

    async def _start(self) -> TicketTopic:
        self._user = (await self._client.get_me()).client.user_id or 0
        return await letter_topic(self._client, self._stream, self._topic)

    async def _redrive_partition(self, topic: TicketTopic, partition: TicketPartition) -> None:
        number = partition.partition
        memory = await Memory.load(self._client, self._stream, self._topic, number)
        delivery = None
        at = partition.start if self._again else max(partition.start, memory.passed)
        if not self._dry_run:
            name = f"{topic.uid}.{number}.{partition.generation}"
            delivery = await self._open(f"{name}/{self._run}" if self._again else name)
            await memory.pass_to(delivery.last)  # of a run that was cut off before it said so
            at = max(at, delivery.last)
        while at < partition.next:
            letters = await self._read(number, at, partition.next)
            if not letters:
                return  # retention was faster
            end = letters[-1].offset + 1
            chosen = self._fresh(letters, memory)
            pieces = await self._pieces(chosen)
            if delivery is not None:
                await delivery.publish(end, pieces, last=self._again and end >= partition.next)
                await memory.pass_to(end)
            self._on_progress(len(letters))
            at = end

    async def _redrive_chosen(self, name: str, partition: int, letters: Sequence[Letter]) -> None:
        memory = await Memory.load(self._client, self._stream, self._topic, partition)
        fresh = self._fresh(letters, memory)
        pieces = await self._pieces(fresh)
        if fresh and not self._dry_run:
            # The same choice again, after a crash in between, is the same publisher: it ended.
            choice = f"{[each.offset for each in fresh]}{self._to}".encode()
            label = self._run if self._again else hashlib.sha256(choice).hexdigest()[:32]
            delivery = await self._open(f"{name}/{label}")
            await delivery.publish(0, pieces, last=True)
            await memory.remember(each.offset for each in fresh)
        self._on_progress(len(letters))

    def _fresh(self, letters: Sequence[Letter], memory: Memory) -> list[Letter]:
        fresh = [each for each in letters if self._again or each.offset not in memory]
        self._done.known += len(letters) - len(fresh)
        return fresh

    async def _open(self, name: str) -> WindowDelivery:
        # A publisher belongs to its user: another one's has another name.
        return await WindowDelivery.open(
            self._client, f"redrive/{self._user}/{name}", run=self._run
        )

    async def _read(self, partition: int, start: int, end: int) -> list[Letter]:
        polled = await self._client.poll(
            self._stream,
            self._topic,
            partition=partition,
            strategy=Strategy.offset(start),
            count=min(POLL_MESSAGES, end - start),
        )
        return [parse_letter(message, partition) for message in polled.messages()]

    async def _pieces(self, letters: Sequence[Letter]) -> list[Piece]:
        """What to publish, by home; the order within each is that of the letters."""
        homes: dict[_Home, list[Message]] = {}
        for letter in letters:
            home = await self._home(letter)
            if home is None:
                self._done.homeless += 1
                continue
            homes.setdefault(home, []).append(to_message(letter))
            name = f"{home.stream}/{home.topic}"
            self._done.sent[name] = self._done.sent.get(name, 0) + 1
        pieces = []
        for home, messages in homes.items():
            laid = encode_send(home.stream, home.topic, Partitioning.balanced(), messages)
            pieces.append(Piece(home.stream, home.topic, home.partition, laid.area, laid.starts))
        return pieces

    async def _home(self, letter: Letter) -> _Home | None:
        place = letter.place
        if self._to is not None:
            count = await self._partitions(*self._to)
            return _Home(*self._to, _partition_in(letter, count))
        if place is not None:
            count = await self._partitions(place.stream, place.topic)
            if place.partition < count:
                return _Home(place.stream, place.topic, place.partition)
            if count:
                return _Home(place.stream, place.topic, _partition_in(letter, count))
        if self._skip_homeless:
            return None
        why = "does not say where it came from" if place is None else f"came from {place}, gone now"
        raise InvalidArgumentError(
            f"letter {letter.offset} of {self._stream}/{self._topic} {why}: name a topic to send "
            "it to, or leave such letters out"
        )

    async def _partitions(self, stream: str, topic: str) -> int:
        """How many; 0 for a topic that does not exist, unless it was asked for by name."""
        key = (stream, topic)
        if key not in self._partition_counts:
            details = await self._client.get_topic(stream, topic)
            if details is None and key == self._to:
                raise NotFoundError(f"there is no topic {stream}/{topic}")
            self._partition_counts[key] = 0 if details is None else len(details.partitions)
        return self._partition_counts[key]


def _partition_in(letter: Letter, count: int) -> int | None:
    """Where the key belongs, as any client would have it; else letters that came from one partition
    stay together; None leaves it to the server."""
    if letter.key and count:
        return int(xxhash.xxh32_intdigest(letter.key) % count)
    return letter.place.partition % count if letter.place is not None and count else None


def to_message(letter: Letter) -> Message:
    """The message as it was, with the headers that stay with it."""
    own = letter.headers
    origin = [] if letter.origin is None else letter.origin.headers()
    count = UserHeader.of(REDRIVE_COUNT, str(letter.redrives + 1))
    return Message(
        payload=letter.payload,
        headers=key_header(letter.key) + encode_headers([*own, *origin, count]),
        origin_timestamp_us=letter.origin_timestamp_us or letter.timestamp_us,
    )
