"""A replay under way: a file says what is copied, the broker knows how far it came.

The file fixes the offsets, so that a job that goes on tomorrow copies what was meant today.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.errors import ConfigError, NotFoundError
from headrace.transfer.copying import Copy, OnProgress, Pace
from headrace.transfer.delivery import WindowDelivery
from headrace.transfer.offset_ranges import OffsetRange, describe_source

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient


def folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "headrace" / "replays"


class ReplayJob(msgspec.Struct, frozen=True):
    id: str
    source: str
    target: str
    identity: str
    """Of the source topic: a topic that was made again is another one."""
    spans: tuple[OffsetRange, ...]

    @property
    def messages(self) -> int:
        return sum(span.count for span in self.spans)

    def save(self) -> None:
        folder().mkdir(parents=True, exist_ok=True)
        draft = folder() / f".{self.id}.new"
        with draft.open("wb") as file:
            file.write(msgspec.json.encode(self))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder() / f"{self.id}.json")

    def remove(self) -> None:
        (folder() / f"{self.id}.json").unlink(missing_ok=True)

    @classmethod
    def load(cls, id_: str) -> ReplayJob:
        try:
            return msgspec.json.decode((folder() / f"{id_}.json").read_bytes(), type=cls)
        except FileNotFoundError:
            left = ", ".join(sorted(each.stem for each in folder().glob("*.json"))) or "none"
            raise NotFoundError(
                f"there is no replay {id_} to go on with; unfinished: {left}"
            ) from None
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ConfigError(f"cannot read the replay {id_}: {error}") from error


async def carry_out(
    client: IggyClient, job: ReplayJob, *, rate: float, on_progress: OnProgress
) -> int:
    """How many messages were sent now; those of an earlier attempt are not sent again."""
    source = job.source.split("/", 1)
    target = job.target.split("/", 1)
    found = await describe_source(client, source[0], source[1])
    generations = {each.partition: each.generation for each in found.partitions}
    purged = any(generations.get(span.partition) != span.generation for span in job.spans)
    if found.identity != job.identity or purged:
        raise NotFoundError(f"{job.source} is not the topic it was when the replay was begun")
    details = await client.get_topic(target[0], target[1])
    if details is None:
        raise NotFoundError(f"there is no topic {job.target}")
    copy = Copy(
        client,
        (source[0], source[1]),
        (target[0], target[1]),
        partitions=(len(found.partitions), len(details.partitions)),
        pace=Pace(client.runtime.clock, rate),
        on_progress=on_progress,
    )
    run = client.runtime.random.uuid().hex
    copied = 0
    for span in job.spans:
        name = f"replay/{job.id}/{span.partition}.{span.generation}"
        copied += await copy.span(span, await WindowDelivery.open(client, name, run=run), ends=True)
    return copied
