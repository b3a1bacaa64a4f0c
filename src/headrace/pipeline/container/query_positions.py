"""How far each query has read its topics, as offsets of a consumer group of its own.

So every tool sees how far each of them is behind, and retention waits for the slowest. Spark's
checkpoint stays the position: nothing is ever read from the group. A batch counts once Spark has
committed it, which is when it tells of its progress.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.observability.logging import get_logger

if TYPE_CHECKING:
    from headrace.client.iggy import IggyClient
    from headrace.client.partition_reader import Key
    from headrace.spark.options import SourceOptions
    from headrace.spark.server import Remote
    from headrace.spark.source.batch_plan import Offsets

STORE_SECONDS = 5.0  # for the broker to take positions; they are stored again with the next batch
LETTERS = "_dead_letter"  # ends the name of a query that publishes dead letters
EDGE = "_edge"  # ends that of one whose stage also publishes to a topic of the user's

log = get_logger(__name__)


def group_of(application: str, query: str) -> str:
    """The consumer group that shows how far a query has read its topics."""
    return f"pipeline.{application}.{query}"


def operator_of(group: str, application: str, operators: Iterable[str]) -> str | None:
    """The operator whose query stores its positions in a group, if it is one of this application;
    queries are named after it, its output port, and what they are for."""
    prefix = group_of(application, "")
    if not group.startswith(prefix):
        return None
    query = group.removeprefix(prefix)
    name = query.removesuffix(LETTERS).removesuffix(EDGE)
    known = set(operators)
    return next((one for one in (query, name, name.partition(".")[0]) if one in known), None)


class QueryPositions:
    """Of one query. Blocking; a failure is told in the log once, and never ends the query."""

    def __init__(
        self, group: str, topics: Mapping[str, SourceOptions], former: Sequence[str]
    ) -> None:
        """`topics` by their ports, each perhaps several; `former` are groups that stood for several
        queries at once: they would hold retention where they were left."""
        self._group = group
        self._topics = topics
        self._former = list(former)
        self._seen: dict[Key, tuple[int, int]] = {}
        self._stored: dict[Key, int] = {}
        self._told = ""

    def store(self, ends: Sequence[Any]) -> None:
        """`ends`: where the last committed batch ended, as each source of the query puts it."""
        finished = read_ends(ends)
        if finished is None or not self._topics or finished.positions == self._seen:
            return
        from headrace.spark.server import connect

        server = connect(next(iter(self._topics.values())).target)
        try:
            server.run(self._store(server.remote, finished))
            self._seen = dict(finished.positions)
        except (HeadraceError, TimeoutError) as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("positions_not_stored", group=self._group, reason=self._told)

    async def _store(self, remote: Remote, finished: Offsets) -> None:
        from headrace.spark.source.following import due

        async with asyncio.timeout(STORE_SECONDS):
            for options in self._topics.values():
                state, _ = await remote.reading.describe(options.target, options.topics)
                wanted = due(finished, state, self._stored)
                names = {topic.uid: topic.topic for topic in state.topics}
                offsets = {(names[uid], partition): at for (uid, partition), at in wanted.items()}
                await remote.reading.store(options.target, self._group, offsets)
                self._stored.update(wanted)
                for former in self._former:
                    for name in names.values():
                        with suppress(HeadraceError):  # it holds retention for a time, no more
                            place = (options.target.stream, name, former)
                            await remote.call(partial(_remove, place=place))
            self._former = []


async def _remove(client: IggyClient, place: tuple[str, str, str]) -> None:
    if await client.get_group(*place) is not None:
        await client.delete_group(*place)


def read_ends(ends: Sequence[Any]) -> Offsets | None:
    """One position out of those of a query's sources; None where they are not the connector's."""
    from headrace.spark.source.batch_plan import Offsets

    found = []
    for end in ends:
        value = json.loads(end) if isinstance(end, str) else end
        if isinstance(value, Mapping) and "p" in value:
            found.append(Offsets.from_json(value))
    if not found:
        return None
    merged = {key: at for one in found for key, at in one.positions.items()}
    return Offsets(found[0].cluster, merged)
