"""Edges between queries: the topics that the controller makes, and nobody else writes to.

An edge carries one stream of the plan from the query that makes it, in any number of instances, to
those that read it. It is one topic, `_pipeline.<application>/<stream>`, with a partition and a
publisher for each instance. Rows lie in it window by window, as Arrow:

1. `make_edge` before anything that writes or reads it is deployed, and again when the number of
   instances changes, with the window after which the new ones publish.
2. A container publishes each batch with `headrace.spark.edges.sink` under
   `edge.publisher(instance)` and the epoch it was deployed with (the operator's run): a zombie's
   epoch is lower, and refused.
3. Readers use `headrace.spark.edges.source`; what their offsets name is windows.
4. `reset_edge` voids what was published after a window, when the cascade rolls its writer back.
5. `purge_edge` gives space back up to `purge_window`. Only edges are ever purged: the broker
   refuses it for a topic that has no publishers set.
6. `remove_edges` when the application is removed; its publishers go with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from headrace.client.iggy import IggyClient
from headrace.errors import AlreadyExistsError, InvalidArgumentError
from headrace.ids import WindowId
from headrace.pipeline.plan.physical import PhysicalPlan
from headrace.wire.iggy.messages.topics import NEVER_EXPIRES, UNLIMITED
from headrace.wire.umbilical.windows import NO_WINDOW, WindowGrid

CODEC_ID = 1  # of Arrow, the one codec: `streamCodecs` of deploy requests is {1: "arrow"}


LAST_WINDOW = (1 << 63) - 1  # no window is later


@dataclass(frozen=True, slots=True)
class Edge:
    application: str
    stream: str
    """Its name in the plan."""
    instances: int = 1
    """Of the operator that makes it: so many partitions, each with a publisher."""

    @property
    def iggy_stream(self) -> str:
        return f"_pipeline.{self.application}"

    @property
    def topic(self) -> str:
        return self.stream

    @property
    def address(self) -> str:
        """As the option `topic` of the Spark formats takes it."""
        return f"{self.iggy_stream}/{self.topic}"

    def publisher(self, instance: int = 0) -> str:
        """Under which an instance publishes, to the partition of the same number."""
        return f"pipeline/{self.application}/{self.stream}/{instance}"

    @property
    def publishers(self) -> tuple[str, ...]:
        return tuple(self.publisher(instance) for instance in range(self.instances))


def edges_of(plan: PhysicalPlan) -> tuple[Edge, ...]:
    """One for every stream that some operator reads in another query."""
    sources = {stream.name: stream.source.operator for stream in plan.logical.streams}
    split = {
        connection.stream
        for operator in plan.operators
        for connection in operator.inputs
        if not connection.local
    }
    instances = {operator.name: operator.instances for operator in plan.logical.operators}
    return tuple(
        Edge(plan.logical.name, name, instances[source])
        for name, source in sources.items()
        if name in split
    )


async def make_edge(
    client: IggyClient, edge: Edge, *, after: WindowId = NO_WINDOW, epoch: int = 0
) -> None:
    """Make it, or change who publishes it from the window after `after` on; repeating is harmless.

    WINDOW_OUT_OF_ORDER if anyone already closed a later window. Runs below `epoch` are refused.
    """
    await _unless_there(lambda: client.create_stream(edge.iggy_stream))
    await _unless_there(
        lambda: client.create_topic(
            edge.iggy_stream,
            edge.topic,
            partitions_count=edge.instances,
            message_expiry_us=NEVER_EXPIRES,
            max_size_bytes=UNLIMITED,
        )
    )
    found = await client.get_topic(edge.iggy_stream, edge.topic)
    missing = edge.instances - (len(found.partitions) if found is not None else 0)
    if missing > 0:
        await client.create_partitions(edge.iggy_stream, edge.topic, missing)
    await client.set_publishers(
        edge.iggy_stream, edge.topic, edge.publishers, after=after, epoch=epoch
    )


async def last_closed(client: IggyClient, edge: Edge) -> WindowId:
    """The last window that a publisher of it closed, with rows or without."""
    listed = await client.list_windows(edge.iggy_stream, edge.topic, after=LAST_WINDOW)
    return WindowId(max((one.last_window for one in listed.publishers), default=NO_WINDOW))


async def reset_edge(client: IggyClient, edge: Edge, *, window: WindowId, epoch: int) -> None:
    """Void every later window: each publisher goes on after the newest window it closed up to this
    one. `epoch` is above every run deployed so far; the same reset again does nothing."""
    await client.reset_after(edge.iggy_stream, edge.topic, window=window, epoch=epoch)


async def purge_edge(client: IggyClient, edge: Edge, *, window: WindowId) -> None:
    """Forget windows up to this one (see `purge_window`); NO_WINDOW: none."""
    if window != NO_WINDOW:
        await client.purge_to(edge.iggy_stream, edge.topic, window=window)


async def remove_edges(client: IggyClient, application: str) -> None:
    """Delete all edges an application ever had, and what the broker knows of their publishers.

    A topic of the same stream that has no publishers set is somebody else's and stays.
    """
    stream = Edge(application, "").iggy_stream
    if await client.get_stream(stream) is None:
        return
    kept = 0
    for topic in await client.get_topics(stream):
        try:
            await client.list_windows(stream, topic.name, limit=1)
        except InvalidArgumentError:
            kept += 1
        else:
            await client.delete_topic(stream, topic.name)
    if not kept:
        await client.delete_stream(stream)


def purge_window(
    grid: WindowGrid, committed: WindowId, *, now_ms: int, rollback_retention_ms: int
) -> WindowId:
    """The newest window that nobody needs any more, NO_WINDOW while there is none.

    Below the committed window, which every operator recovers at or after, and old enough that
    nobody may roll back to it.
    """
    oldest_ms = now_ms - rollback_retention_ms
    if committed == NO_WINDOW or oldest_ms < grid.start_ms:
        return NO_WINDOW
    return min(grid.previous(committed), grid.previous(grid.window_at(oldest_ms)))


async def _unless_there(create: Callable[[], Awaitable[object]]) -> None:
    try:
        await create()
    except AlreadyExistsError:
        return
