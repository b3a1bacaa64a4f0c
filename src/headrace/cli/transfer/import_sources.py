"""Where an import goes, and how far it came: the target broker knows, in the step that publishes.

Each part of a source (a file, a partition) has a publisher of its own, whose windows are positions
in that part. So an import that is killed at any moment and run again neither loses nor repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from headrace.client.iggy import IggyClient
from headrace.errors import AlreadyExistsError, ConfigError, NotFoundError
from headrace.transfer.delivery import Delivery, describe_topic
from headrace.wire.iggy import commands as c


@dataclass(slots=True)
class Imported:
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

    async def delivery(self, identity: Mapping[str, str], part: str) -> Delivery:
        """Of one part of a source; `identity` tells it from every other source."""
        text = "\0".join(f"{name}={value}" for name, value in sorted(identity.items()))
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        name = f"import/{self._user}/{self._uid}/{digest}/{part}"
        return await Delivery.open(self.client, name, run=self._run)
