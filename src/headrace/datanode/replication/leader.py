"""The ranges that this node leads with other replicas: order, acknowledgement, loss of a quorum.

An append gets its place in every feed in the same step in which it gets its offset; the local disk
and the replicas then work in parallel. It is acknowledged when its end is committed. A range stops
for good when too few replicas are reachable for `replica_timeout_ms`, when one of them refuses for
ever and too few are left, when replicas diverge, or when it is sealed: the next range goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import DataNodeSettings
from headrace.datanode.replication.commitment import Commitment, Lags, Outgoing, ReplicaFeed
from headrace.datanode.replication.sender import Sender
from headrace.errors import (
    CorruptionError,
    HeadraceError,
    SealedError,
    StorageError,
    UnavailableError,
)
from headrace.net.sbp_channel import Channel
from headrace.runtime.interfaces import Buffer, Runtime
from headrace.sbp_client.channels import Connect
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import QuorumError

_LAG_CHECK_SECONDS = 1.0
_ASK_AGAIN_SECONDS = 60.0
"""A replica that is slow for good is slow in the next range too: no range per lag."""

_log = logging.getLogger(__name__)


class LedRange:
    """One range; a `Source` of its feeds. Made by `LedRanges`."""

    def __init__(
        self,
        log: RangeLog,
        senders: Mapping[ReplicaFeed, Sender],
        *,
        monotonic: Callable[[], float],
        on_stopped: Callable[[LedRange, HeadraceError], None],
        on_refused: Callable[[LedRange, ReplicaFeed, HeadraceError], None],
    ) -> None:
        self.log = log
        self.senders = senders
        self.stopped: HeadraceError | None = None
        self._commitment = Commitment.of(
            start=log.durable_offset,
            quorum=log.ack_quorum,
            secondaries=[feed.node_id for feed in senders],
        )
        self._lags = Lags()
        self._waiting: deque[tuple[int, float, asyncio.Future[None]]] = deque()  # by end
        self._monotonic = monotonic
        self._on_stopped = on_stopped
        self._on_refused = on_refused
        self._loop = asyncio.get_running_loop()

    @property
    def committed(self) -> int:
        return self._commitment.committed

    def append(self, header: bytearray, body: Sequence[Buffer]) -> asyncio.Future[None]:
        """Like the log's append of a verified batch; the future is done when it is committed."""
        log = self.log
        base = log.next_offset
        durable = log.append(header, body, verified=True)
        end = log.next_offset
        size = len(header) + sum(map(len, body))
        batch = Outgoing(base, end, size, (header, *body))
        for feed, sender in self.senders.items():
            sender.push(feed, batch)
        durable.add_done_callback(partial(self._on_durable, end))
        return self.wait(end)

    def wait(self, end: int) -> asyncio.Future[None]:
        """Done when everything below `end` is committed; fails when the range stops before."""
        done: asyncio.Future[None] = self._loop.create_future()
        if end <= self.committed:
            done.set_result(None)
        elif self.stopped is not None:
            _refuse(done, self.stopped)
        else:
            waiting = self._waiting
            place = len(waiting)
            while place and waiting[place - 1][0] > end:  # the repetition of an earlier batch
                place -= 1
            waiting.insert(place, (end, self._monotonic(), done))
        return done

    # What happens

    def _on_durable(self, end: int, durable: asyncio.Future[None]) -> None:
        error = UnavailableError("cut off") if durable.cancelled() else durable.exception()
        if self.stopped is not None:
            return
        if error is not None:
            if not isinstance(error, HeadraceError):
                error = StorageError(f"the log broke: {error!r}")
            self.stop(error)
            return
        if self._commitment.on_durable(end):
            self._on_committed()
        for feed, sender in self.senders.items():
            sender.on_durable(feed)

    def on_held(self, feed: ReplicaFeed) -> None:
        if self.stopped is None and self._commitment.on_held(feed.node_id, feed.held):
            self._on_committed()

    def _on_committed(self) -> None:
        committed = self._commitment.committed
        self.log.set_committed(committed)
        waiting = self._waiting
        while waiting and waiting[0][0] <= committed:
            done = waiting.popleft()[2]
            if not done.done():  # its caller may have stopped waiting
                done.set_result(None)
        for feed, sender in self.senders.items():
            sender.on_committed(feed)

    def on_over(self, feed: ReplicaFeed, error: HeadraceError) -> None:
        _log.warning("replica on node %d is over for %s: %s", feed.node_id, self.log.key, error)
        if self.stopped is not None:
            return
        if isinstance(error, CorruptionError):
            self.stop(CorruptionError("replicas differ", **self.log.key._asdict()))
        elif not self._commitment.possible(without=sum(f.over is not None for f in self.senders)):
            self.stop(self._quorum_error())
        else:
            self._on_refused(self, feed, error)

    def check_quorum(self, now: float, timeout: float) -> None:
        """Stop when appends have waited for too few reachable replicas for so long."""
        if not self._waiting or self.stopped is not None:
            return
        first = self._waiting[0][1]
        out = 0
        for feed, sender in self.senders.items():
            since = sender.unreachable_since
            if since is None:
                since = feed.absent_since
            if feed.over is not None or (since is not None and now - max(since, first) >= timeout):
                out += 1
        if not self._commitment.possible(without=out):
            self.stop(self._quorum_error())

    def check_lag(self, now: float, *, lag_max: float, absent_max: float) -> ReplicaFeed | None:
        """A replica that is too far behind, if there is one."""
        live = [feed for feed in self.senders if feed.over is None]
        self._lags.on_tick(now, self.log.durable_offset, min((f.held for f in live), default=0))
        for feed in live:
            reachable = self.senders[feed].unreachable_since is None
            limit = lag_max if reachable else absent_max
            if self._lags.of(feed.held, now) >= limit:
                return feed
        return None

    def missing_replicas(self) -> bool:
        return any(
            feed.over is not None
            or feed.absent_since is not None
            or sender.unreachable_since is not None
            for feed, sender in self.senders.items()
        )

    def stop(self, error: HeadraceError) -> None:
        """Nothing of this range is acknowledged from now on."""
        if self.stopped is not None:
            return
        # Whatever happened to our disk, the others may have it, and the next range is elsewhere.
        told = self._quorum_error(error.message) if isinstance(error, StorageError) else error
        self.stopped = told
        for feed, sender in self.senders.items():
            sender.remove(feed)
        for _, _, done in self._waiting:
            _refuse(done, told)
        self._waiting.clear()
        self._on_stopped(self, error)

    def _quorum_error(self, reason: str = "too few replicas are reachable") -> QuorumError:
        return QuorumError(reason, **self.log.key._asdict())


def _refuse(done: asyncio.Future[None], error: HeadraceError) -> None:
    if not done.done():
        # A fresh instance each: raising one object again and again would grow its traceback.
        done.set_exception(type(error)(error.message, **error.data))
        done.exception()  # seen: its caller may have given up


class LedRanges:
    """All of them, with one sender per other node."""

    def __init__(
        self,
        runtime: Runtime,
        settings: DataNodeSettings,
        *,
        connect_to: Callable[[str], Connect],
        addresses: Mapping[int, str],
        introduce: Callable[[], m.HeartbeatRequest],
        on_stopped: Callable[[RangeKey, HeadraceError], None],
        ask_seal: Callable[[RangeKey, str], None],
    ) -> None:
        """`addresses` is the book of data nodes, looked at for every connection."""
        self._runtime = runtime
        self._settings = settings
        self._connect_to = connect_to
        self._addresses = addresses
        self._introduce = introduce
        self._on_stopped = on_stopped
        self._ask_seal = ask_seal
        self._led: dict[RangeKey, LedRange] = {}
        self._senders: dict[int, Sender] = {}
        self._asked: dict[int, float] = {}
        self._tasks = TaskSet("replication")
        self._some = asyncio.Event()
        self._watched = False

    def lead(self, log: RangeLog, secondaries: Sequence[int]) -> None:
        """Order this range from now on; it holds no records yet."""
        if log.key in self._led:
            return
        senders = {
            ReplicaFeed(log.key, node_id, log.durable_offset, log.durable_offset): self._sender(
                node_id
            )
            for node_id in secondaries
        }
        led = LedRange(
            log,
            senders,
            monotonic=self._runtime.clock.monotonic,
            on_stopped=self._on_range_stopped,
            on_refused=self._on_refused,
        )
        self._led[log.key] = led
        for feed, sender in senders.items():
            sender.add(feed, led)
        if not self._watched:
            self._watched = True
            self._tasks.start(self._watch(), name="watch")
        self._some.set()

    def _sender(self, node_id: int) -> Sender:
        sender = self._senders.get(node_id)
        if sender is None:
            sender = self._senders[node_id] = Sender(
                self._runtime,
                self._settings,
                node_id=node_id,
                connect=partial(self._dial, node_id),
                introduce=self._introduce,
            )
            self._tasks.start(sender.run(), name=f"node {node_id}")
        return sender

    async def _dial(self, node_id: int) -> Channel:
        address = self._addresses.get(node_id, "")
        if not address:
            raise UnavailableError("the replica's node has no known address", node_id=node_id)
        return await self._connect_to(address)()

    def find(self, key: RangeKey) -> LedRange | None:
        return self._led.get(key)

    def require(self, log: RangeLog) -> LedRange:
        """SealedError when the range takes no more appends."""
        led = self._led.get(log.key)
        if led is None or led.stopped is not None:
            raise SealedError("the range takes no more appends", **log.key._asdict())
        return led

    def release(self, key: RangeKey, error: HeadraceError) -> None:
        """The range is sealed, or gone."""
        led = self._led.pop(key, None)
        if led is not None:
            led.stop(error)

    def missing_replicas(self) -> int:
        """Ranges of which some replica does not keep up."""
        return sum(led.missing_replicas() for led in self._led.values())

    def lag_records(self) -> int:
        """How far the slowest replica of any range is behind this node's disk."""
        return max(
            (
                led.log.durable_offset - feed.held
                for led in self._led.values()
                for feed in led.senders
                if feed.over is None
            ),
            default=0,
        )

    def statistics(self) -> dict[str, int]:
        return {
            "ranges_led": len(self._led),
            "replica_nodes": len(self._senders),
            "replica_nodes_unreachable": sum(
                sender.unreachable_since is not None for sender in self._senders.values()
            ),
            "replica_queued_bytes": sum(s.queued_bytes for s in self._senders.values()),
        }

    async def close(self) -> None:
        for key in list(self._led):
            self.release(key, UnavailableError("the data node closes"))
        for sender in self._senders.values():
            await sender.close()
        await self._tasks.close()

    def _on_range_stopped(self, led: LedRange, error: HeadraceError) -> None:
        key = led.log.key
        if self._led.get(key) is led:  # not released: the range itself is in trouble
            _log.warning("range %s stops: %s", key, error)
            self._on_stopped(key, error)
            self._ask_seal(key, error.message)

    def _on_refused(self, led: LedRange, feed: ReplicaFeed, error: HeadraceError) -> None:
        """Enough replicas are left, but the range will never be whole again."""
        self._ask_seal(led.log.key, f"node {feed.node_id} takes no more: {error.message}")

    async def _watch(self) -> None:
        settings, clock = self._settings, self._runtime.clock
        timeout = settings.replica_timeout_ms / 1000
        lag_at = clock.monotonic()
        while True:
            if not self._led:
                self._some.clear()
                await self._some.wait()
            await clock.sleep(timeout / 4)
            now = clock.monotonic()
            for sender in self._senders.values():
                sender.probe(now)
            for led in list(self._led.values()):
                led.check_quorum(now, timeout)
            if now >= lag_at:
                lag_at = now + min(_LAG_CHECK_SECONDS, settings.replica_lag_ms_max / 4000)
                self._check_lags(now)

    def _check_lags(self, now: float) -> None:
        settings = self._settings
        asked: dict[int, None] = {}
        for led in self._led.values():
            if led.stopped is not None:
                continue
            feed = led.check_lag(
                now,
                lag_max=settings.replica_lag_ms_max / 1000,
                absent_max=settings.replica_absent_ms_max / 1000,
            )
            if feed is None or now < self._asked.get(feed.node_id, now):
                continue
            asked[feed.node_id] = None
            self._ask_seal(led.log.key, f"the replica on node {feed.node_id} is too far behind")
        self._asked.update(dict.fromkeys(asked, now + _ASK_AGAIN_SECONDS))
