"""Imports of a file of JSON lines and of topics of an Iggy server, or of another Headrace.

How far an import came is known by the target broker, in the step that publishes. Each part of a
source (a file, a partition) has a publisher of its own, whose windows are positions in that part: a
byte of the file, an offset of the partition. So an import that is killed at any moment and run
again neither loses nor repeats.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import xxhash

from headrace.cli.messages.records import from_line
from headrace.client.iggy import IggyClient
from headrace.client.url import Identity
from headrace.errors import AlreadyExistsError, ConfigError, InvalidArgumentError, NotFoundError
from headrace.net.addresses import parse_address
from headrace.net.tls import ClientTls
from headrace.runtime.interfaces import Runtime
from headrace.transfer.copying import Copy, Pace
from headrace.transfer.delivery import Piece, WindowDelivery, describe_topic
from headrace.transfer.offset_ranges import SourceTopic
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.messages.messages import Message, encode_send
from headrace.wire.iggy.primitives import Partitioning
from headrace.wire.iggy.vsr.client import Conversation


@dataclass(slots=True)
class ImportFigures:
    """What a run did."""

    messages: int = 0
    before: dict[str, int] = field(default_factory=dict)
    """Where each part was gone on from: what lies before was there already."""
    remarks: dict[str, int] = field(default_factory=dict)
    """What could not be kept as it was, and how often."""

    def remark(self, what: str, count: int) -> None:
        if count:
            self.remarks[what] = self.remarks.get(what, 0) + count


class ImportTarget:
    """Made by `prepare`."""

    def __init__(self, client: IggyClient, name: tuple[str, str], uid: int, count: int) -> None:
        self.client = client
        self.stream, self.topic = name
        self.partitions = count
        self._uid = uid
        self._user = 0
        self._run = client.runtime.random.uuid().hex

    @classmethod
    async def prepare(
        cls, client: IggyClient, name: tuple[str, str], *, partitions: int
    ) -> ImportTarget:
        """Makes the topic, with so many partitions, and its stream, unless they are there."""
        hello = await client.hello()
        if hello is None or c.CLOSE.name not in hello.features:
            raise ConfigError("an import goes into a Headrace server; this is a plain Iggy server")
        found = await describe_topic(client, *name)
        if found is None:
            with suppress(AlreadyExistsError):
                await client.create_stream(name[0])
            with suppress(AlreadyExistsError):
                await client.create_topic(*name, partitions_count=partitions)
            found = await describe_topic(client, *name)
        if found is None:
            raise NotFoundError(f"there is no topic {name[0]}/{name[1]}")
        target = cls(client, name, found.uid, len(found.partitions))
        target._user = (await client.get_me()).client.user_id or 0
        return target

    async def delivery(self, identity: Mapping[str, str], part: str) -> WindowDelivery:
        """Open the delivery of a part of a source; `identity` tells it from every other source."""
        text = "\0".join(f"{name}={value}" for name, value in sorted(identity.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        name = f"import/{self._user}/{self._uid}/{digest}/{part}"
        return await WindowDelivery.open(self.client, name, run=self._run)


BATCH_BYTES_MAX = 4 << 20
LINE_BYTES_MAX = 64 << 20


async def import_lines(
    target: ImportTarget,
    path: Path,
    *,
    rate: float = 0,
    by_key: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ImportFigures:
    """`on_progress` is told bytes."""
    done = ImportFigures()
    pace = Pace(target.client.runtime.clock, rate)
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            delivery = await target.delivery(_identity(path, file), "lines")
            at = max(0, delivery.last)
            _check_resume(file, at, size, path)
            done.before[str(path)] = at
            on_progress(at)
            for lines, end in _batches(file, at, pace.batch):
                messages = [from_line(line, f"at byte {place}") for line, place in lines]
                await delivery.publish(end, _pieces(target, messages, by_key=by_key))
                done.messages += len(messages)
                on_progress(end - at)
                at = end
                await pace.on_sent(len(messages))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    return done


def _identity(path: Path, file: BinaryIO) -> dict[str, str]:
    """Tells the file from another one that is put in its place; a file that grows stays itself."""
    file.seek(0)
    first = file.readline(LINE_BYTES_MAX).rstrip(b"\r\n")
    return {"file": str(path.resolve()), "begin": hashlib.sha256(first).hexdigest()}


def _check_resume(file: BinaryIO, at: int, size: int, path: Path) -> None:
    if at == 0:
        return
    file.seek(at - 1)
    if at > size or (file.read(1) != b"\n" and at != size):
        raise InvalidArgumentError(
            f"{path} was imported up to byte {at}, and no line ends there now: it is another file. "
            "Give it another name to import it as well"
        )


def _batches(
    file: BinaryIO, at: int, count_max: int
) -> Iterator[tuple[list[tuple[bytes, int]], int]]:
    """Lines and where each begins, and the position after them."""
    file.seek(at)
    lines: list[tuple[bytes, int]] = []
    begin = at
    while line := file.readline(LINE_BYTES_MAX):
        place, at = at, at + len(line)
        if text := line.rstrip(b"\r\n"):
            lines.append((text, place))
        if len(lines) >= count_max or at - begin >= BATCH_BYTES_MAX:
            yield lines, at
            lines, begin = [], at
    if at > begin:
        yield lines, at


def _pieces(
    target: ImportTarget, messages: list[tuple[Message, int | None]], *, by_key: bool
) -> list[Piece]:
    """By partition: the line's own if there is such a one, else the key's, else any."""
    homes: dict[int | None, list[Message]] = {}
    for message, stated in messages:
        home = stated if stated is not None and stated < target.partitions and not by_key else None
        if home is None and (key := message.key):
            home = xxhash.xxh32_intdigest(key) % target.partitions
        homes.setdefault(home, []).append(message)
    pieces = []
    for home, group in homes.items():
        laid = encode_send(target.stream, target.topic, Partitioning.balanced(), group)
        pieces.append(Piece(target.stream, target.topic, home, laid.area, laid.starts))
    return pieces


@dataclass(frozen=True, slots=True)
class IggySource:
    address: str
    username: str
    password: str
    token: str = ""
    dialect: str = "B2"
    tls: ClientTls | None = None

    async def connect(self, runtime: Runtime) -> IggyClient:
        host, port = parse_address(self.address)
        conversation = Conversation(runtime.random.bytes(16)) if self.dialect == "C" else None
        return await IggyClient.connect(
            runtime,
            host,
            port,
            tls=self.tls,
            conversation=conversation,
            identity=Identity(self.username, self.password, self.token),
        )


async def import_topic(
    target: ImportTarget,
    client: IggyClient,
    source: SourceTopic,
    address: str,
    *,
    rate: float = 0,
    by_key: bool = False,
    accept_loss: bool = False,
    on_progress: Callable[[int], None] = lambda _: None,
) -> ImportFigures:
    """`client` is the source's; `address` is where a plain Iggy server, which has no identity of
    its own, is found."""
    done = ImportFigures()
    copy = Copy(
        client,
        (source.stream, source.topic),
        (target.stream, target.topic),
        partitions=(len(source.partitions), target.partitions),
        pace=Pace(target.client.runtime.clock, rate),
        by_key=by_key,
        accept_loss=accept_loss,
        on_progress=on_progress,
    )
    plain = source.identity.startswith(f"{source.stream}/")
    identity = {"iggy": f"{address}/{source.identity}" if plain else source.identity}
    for span in source.partitions:
        part = f"{span.partition}.{span.generation}"
        delivery = await target.delivery(identity, part)
        done.before[str(span.partition)] = max(span.start, delivery.last)
        done.messages += await copy.span(span, delivery, ends=False)
    return done
