"""Dead letters: what a pipeline set aside, why, and sending it on its way again.

A letter is the message as it was, with headers that say where it stood (`headrace.stream`,
`.topic`, `.partition`, `.offset`), which operator refused it and why. An operator that had lost
sight of its messages set aside its own row instead: such a letter has no place and no way back.

A letter that is re-driven gets headers that stay with it, `redrive.*`: should it fail again, the
next letter still says where it first stood, and how often it was tried. (What begins with
`headrace.` a pipeline takes off when it sets a message aside.) What was re-driven is remembered in
the letter topic's consumer group GROUP, so its lag is how many wait; letters that were chosen one
by one are remembered apart until the group's offset passes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.client.iggy import IggyClient
from headrace.errors import AlreadyExistsError, NotFoundError
from headrace.transfer.delivery import describe_topic
from headrace.wire.iggy.errors import DecodeError
from headrace.wire.iggy.messages.extensions import TicketPartition, TicketTopic
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Consumer, Strategy
from headrace.wire.iggy.user_headers import UserHeader, split_key

PREFIX = "headrace."
REDRIVE = "redrive."
REDRIVE_COUNT = f"{REDRIVE}count"
GROUP = "headrace.redrive"
POLL_MESSAGES = 500
_OURS = (PREFIX.encode(), REDRIVE.encode())
_HIGHEST = f"{GROUP}.highest"
_GROUP, _HIGHEST_CHOSEN = Consumer.group(GROUP), Consumer.single(_HIGHEST)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message stood."""

    stream: str
    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.topic}/{self.partition}/{self.offset}"

    def headers(self) -> list[UserHeader]:
        return [
            UserHeader.of(f"{REDRIVE}stream", self.stream),
            UserHeader.of(f"{REDRIVE}topic", self.topic),
            UserHeader.of(f"{REDRIVE}partition", str(self.partition)),
            UserHeader.of(f"{REDRIVE}offset", str(self.offset)),
        ]


@dataclass(frozen=True, slots=True)
class Letter:
    partition: int
    offset: int
    timestamp_us: int
    """When it was set aside."""
    payload: bytes
    reason: str = ""
    operator: str = ""
    window: str = ""
    """The window it was found in, where the whole batch had failed."""
    place: Place | None = None
    """Where the message stood that was refused."""
    origin: Place | None = None
    """Where it first stood: another place once it was re-driven."""
    redrives: int = 0
    """How often it was re-driven before it came here."""
    key: bytes | None = None
    headers: tuple[UserHeader, ...] = ()
    """Its own, without what the dead letter added."""
    origin_timestamp_us: int = 0
    redriven: bool = False


@dataclass(frozen=True, slots=True)
class LetterSummary:
    stream: str
    topic: str
    letters: int
    waiting: int
    """Not re-driven yet."""
    newest_us: int
    """When the newest was set aside; 0: there is none."""


def parse_letter(message: Message, partition: int, *, redriven: bool = False) -> Letter:
    """A letter from its message; headers that are not ours to read leave what they say unsaid."""
    try:
        key, headers = split_key(message.headers)
    except DecodeError:
        key, headers = None, ()
    texts = {
        one.key.decode(errors="replace"): one.value.decode(errors="replace") for one in headers
    }
    place = _place(texts, PREFIX)
    count = texts.get(REDRIVE_COUNT, "")
    return Letter(
        partition=partition,
        offset=message.offset,
        timestamp_us=message.timestamp_us,
        payload=message.payload,
        reason=texts.get(f"{PREFIX}reason", ""),
        operator=texts.get(f"{PREFIX}operator", ""),
        window=texts.get(f"{PREFIX}window", ""),
        place=place,
        origin=_place(texts, REDRIVE) or place,
        redrives=int(count) if count.isdigit() else 0,
        key=key,
        headers=tuple(one for one in headers if not one.key.startswith(_OURS)),
        origin_timestamp_us=message.origin_timestamp_us,
        redriven=redriven,
    )


def _place(texts: dict[str, str], prefix: str) -> Place | None:
    stream, topic, partition, offset = (
        texts.get(f"{prefix}{name}", "") for name in ("stream", "topic", "partition", "offset")
    )
    if not stream or not topic or not partition.isdigit() or not offset.isdigit():
        return None
    return Place(stream, topic, int(partition), int(offset))


# --- looking at them ------------------------------------------------------------------------------


async def summarize(client: IggyClient, stream: str, topic: str) -> LetterSummary | None:
    """None if there is no such topic: nothing was ever set aside."""
    found = await describe_topic(client, stream, topic)
    if found is None:
        return None
    waiting = newest_us = 0
    for partition in found.partitions:
        memory = await Memory.load(client, stream, topic, partition.partition)
        begin = max(memory.passed, partition.start)
        chosen = [offset for offset in memory.chosen if offset >= begin]
        waiting += max(0, partition.next - begin) - len(chosen)
        if partition.next > partition.start:
            last = await _poll(client, stream, topic, partition.partition, partition.next - 1, 1)
            newest_us = max([newest_us, *(message.timestamp_us for message in last)])
    letters = sum(partition.next - partition.start for partition in found.partitions)
    return LetterSummary(stream, topic, letters, waiting, newest_us)


async def list_letters(
    client: IggyClient,
    stream: str,
    topic: str,
    *,
    waiting: bool = True,
    newest: bool = False,
    count: int = 100,
) -> list[Letter]:
    """Up to `count` letters of each partition, oldest first; `newest` takes the last ones instead.

    `waiting` leaves out those that were re-driven. Nothing, if there is no such topic.
    """
    found = await describe_topic(client, stream, topic)
    letters: list[Letter] = []
    for partition in found.partitions if found is not None else ():
        letters += await _list_partition(
            client, stream, topic, partition, waiting=waiting, newest=newest, count=count
        )
    return letters


async def _list_partition(
    client: IggyClient,
    stream: str,
    topic: str,
    partition: TicketPartition,
    *,
    waiting: bool,
    newest: bool,
    count: int,
) -> list[Letter]:
    memory = await Memory.load(client, stream, topic, partition.partition)
    at = max(partition.start, memory.passed if waiting else 0)
    if newest:
        at = max(at, partition.next - count)
    letters: list[Letter] = []
    while at < partition.next and len(letters) < count:
        wanted = min(POLL_MESSAGES, partition.next - at)
        messages = await _poll(client, stream, topic, partition.partition, at, wanted)
        if not messages:
            break
        at = messages[-1].offset + 1
        letters += [
            parse_letter(each, partition.partition, redriven=each.offset in memory)
            for each in messages
            if not waiting or each.offset not in memory
        ]
    return letters[:count]


async def get_letter(
    client: IggyClient, stream: str, topic: str, *, partition: int, offset: int
) -> Letter:
    """NotFoundError if it is not there, or not any more."""
    memory = await Memory.load(client, stream, topic, partition)
    messages = await _poll(client, stream, topic, partition, offset, 1)
    if not messages or messages[0].offset != offset:
        raise NotFoundError(f"{stream}/{topic} has no letter {offset} in partition {partition}")
    return parse_letter(messages[0], partition, redriven=offset in memory)


async def read_letters(
    client: IggyClient, stream: str, topic: str, partition: int, offsets: Collection[int]
) -> list[Letter]:
    """Exactly these, in offset order. NotFoundError names one that is missing."""
    letters: list[Letter] = []
    wanted = sorted(offsets)
    while wanted:
        first = wanted[0]
        count = min(POLL_MESSAGES, wanted[-1] - first + 1)
        messages = await _poll(client, stream, topic, partition, first, count)
        here = {message.offset: message for message in messages}
        if first not in here:
            raise NotFoundError(f"{stream}/{topic} has no letter {first} in partition {partition}")
        end = messages[-1].offset
        for offset in [each for each in wanted if each <= end]:
            letters.append(parse_letter(here[offset], partition))
        wanted = [each for each in wanted if each > end]
    return letters


async def _poll(
    client: IggyClient, stream: str, topic: str, partition: int, offset: int, count: int
) -> list[Message]:
    polled = await client.poll(
        stream, topic, partition=partition, strategy=Strategy.offset(offset), count=count
    )
    return polled.messages()


# --- what was re-driven ---------------------------------------------------------------------------


@dataclass(slots=True)
class Memory:
    """Which letters of a partition were re-driven: all before `passed`, and those `chosen`.

    The first is the offset of a group. The others are a chain of consumers' offsets, each under the
    name of a letter and pointing to the one below it; the lowest points to itself.
    """

    client: IggyClient
    stream: str
    topic: str
    partition: int
    passed: int = 0
    chosen: set[int] = field(default_factory=set)

    def __contains__(self, offset: int) -> bool:
        return offset < self.passed or offset in self.chosen

    @classmethod
    async def load(cls, client: IggyClient, stream: str, topic: str, partition: int) -> Memory:
        memory = cls(client, stream, topic, partition)
        stored = await memory._get(_GROUP)
        memory.passed = 0 if stored is None else stored + 1
        at = await memory._get(_HIGHEST_CHOSEN)
        while at is not None and at >= memory.passed and at not in memory.chosen:
            memory.chosen.add(at)
            at = await memory._get(_chosen(at))
        return memory

    async def remember(self, offsets: Iterable[int]) -> None:
        """These, wherever they stand."""
        new = {offset for offset in offsets if offset not in self}
        below: int | None = None
        # From below, so that whoever is cut off here leaves a chain that leads to the old ones.
        for offset in sorted(self.chosen | new):
            if offset in new or below in new:
                await self._store(_chosen(offset), offset if below is None else below)
            below = offset
        self.chosen |= new
        if new and below is not None:
            await self._store(_HIGHEST_CHOSEN, below)
        end = self.passed
        while end in self.chosen:
            end += 1
        await self.pass_to(end)

    async def pass_to(self, end: int) -> None:
        """Everything before `end`."""
        if end <= self.passed:
            return
        with suppress(AlreadyExistsError):
            await self.client.create_group(self.stream, self.topic, GROUP)
        await self._store(_GROUP, end - 1)
        self.passed = end
        for offset in [each for each in self.chosen if each < end]:
            await self._delete(_chosen(offset))
            self.chosen.discard(offset)
        if not self.chosen:
            await self._delete(_HIGHEST_CHOSEN)

    async def _get(self, consumer: Consumer) -> int | None:
        found = await self.client.get_consumer_offset(
            consumer, self.stream, self.topic, self.partition
        )
        return None if found is None else found.stored_offset

    async def _store(self, consumer: Consumer, offset: int) -> None:
        await self.client.store_consumer_offset(
            consumer, self.stream, self.topic, offset=offset, partition=self.partition
        )

    async def _delete(self, consumer: Consumer) -> None:
        with suppress(NotFoundError):
            await self.client.delete_consumer_offset(
                consumer, self.stream, self.topic, self.partition
            )


def _chosen(offset: int) -> Consumer:
    return Consumer.single(f"{GROUP}.{offset}")


async def letter_topic(client: IggyClient, stream: str, topic: str) -> TicketTopic:
    found = await describe_topic(client, stream, topic)
    if found is None:
        raise NotFoundError(f"there is no topic {stream}/{topic}: nothing was set aside there")
    return found
