"""The data node's side of its talk with the placement managers.

Heartbeats and load go to all of them, so that a new leader knows who lives; everything else goes to
the leader. What the node may have missed it finds by comparing its ranges with the leader's list:
rarely when all is settled, often while a range waits for its final end or for data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from headrace.concurrency.tasks import TaskSet
from headrace.config.datanode import DataNodeSettings
from headrace.datanode.control.node_files import Streams
from headrace.datanode.metrics import Load, Reporter
from headrace.datanode.state import Differences, NodeState, reconcile
from headrace.errors import (
    DeadlineError,
    HeadraceError,
    NotFoundError,
    RemoteProtocolError,
    RequestError,
    UnavailableError,
)
from headrace.net.sbp_server import Reply
from headrace.runtime.interfaces import Runtime
from headrace.sbp_client.channels import PlacementChannel
from headrace.storage.layout import RangeKey
from headrace.storage.range.log import RangeLog
from headrace.wire.sbp import messages as m
from headrace.wire.sbp.errors import OutdatedMetadataError, raise_for_status
from headrace.wire.sbp.opcodes import Code

R = TypeVar("R", bound=m.Message)

_CALL_SECONDS = 3.0
_RETRY_SECONDS = 0.25  # while the placement manager does not answer
_SEALS_AT_ONCE = 8
_STREAMS_AT_ONCE = 64
_SEAL_PAUSE_MIN = 0.1  # whoever has the trouble may be sealing already
_SEAL_PAUSE_MAX = 5.0
_DRAIN_POLL_SECONDS = 0.05
_DRAIN_ASK_SECONDS = 0.5

_log = logging.getLogger(__name__)


class ReportingNode(Protocol):
    """The data node that keeps in touch: what it tells, and what it does with the answers."""

    runtime: Runtime
    settings: DataNodeSettings
    state: NodeState[RangeLog]
    advertise: str

    @property
    def node_id(self) -> int: ...

    def logs(self) -> list[RangeLog]: ...

    def data_node(self) -> m.DataNode: ...

    def introduction(self) -> m.HeartbeatRequest: ...

    async def load(self) -> Load: ...

    async def take_identity(self, node_id: int) -> None:
        """Keep the id that was given out, durably."""
        ...

    async def note_metadata(self, versions: Sequence[int]) -> None:
        """Keep the versions that leaders say; OutdatedMetadataError when the node knows better."""
        ...

    async def apply_list(
        self, differences: Differences, listed: Iterable[m.Range], streams: Streams
    ) -> None:
        """Become what the placement manager's list says."""
        ...


class PlacementContact:
    def __init__(self, node: ReportingNode, links: PlacementChannel) -> None:
        self._node = node
        self._links = links
        self._clock = node.runtime.clock
        self._settings = node.settings
        self._reporter = Reporter()
        self._registered = asyncio.Event()
        self._introduced = asyncio.Event()
        self._refused: RequestError | None = None
        self._wake = asyncio.Event()
        self._missed = True
        self._in_touch = False
        self._outdated = False
        self._known: tuple[str, int] | None = None
        self._report_now = asyncio.Event()
        self._asked: dict[RangeKey, None] = {}
        self._opening: dict[RangeKey, None] = {}
        self._room = asyncio.Semaphore(_SEALS_AT_ONCE)
        self._tasks = TaskSet("data node's contact")
        self._heartbeats = TaskSet("data node's heartbeat")

    @property
    def in_touch(self) -> bool:
        """Whether a placement manager answered the last heartbeat."""
        return self._in_touch

    def start(self) -> None:
        self._heartbeats.start(self._keep_in_touch(), name="heartbeats")
        self._tasks.start(self._keep_reconciled(), name="reconciliation")

    async def wait_registered(self) -> None:
        """A node that has its id serves without the placement manager too; a new one cannot."""
        try:
            async with asyncio.timeout(self._settings.register_timeout_ms / 1000):
                await self._registered.wait()
        except TimeoutError:
            if self._refused is None and self._node.node_id >= 0:
                _log.warning("placement manager not reached; serving without it")
                return
        if self._refused is not None:
            raise self._refused
        if not self._registered.is_set():
            raise UnavailableError("a new data node needs the placement manager to get its id")

    async def stop(self) -> None:
        await self._heartbeats.close()
        await self._tasks.close()

    async def close(self) -> None:
        await self.stop()
        await self._links.close()

    async def call(self, code: Code, request: m.Message, response: type[R]) -> R:
        """Ask the leader; errors leave as the classes their status stands for."""
        reply = await self._links.call(code, request, timeout=_CALL_SECONDS)
        if not isinstance(reply.message, response):
            raise RemoteProtocolError("unexpected answer", found=type(reply.message).__name__)
        raise_for_status(getattr(reply.message, "status", None))
        return reply.message

    # Heartbeats and load

    async def _keep_in_touch(self) -> None:
        while True:
            pause = self._settings.heartbeat_interval_ms / 1000
            started = self._clock.monotonic()
            try:
                if self._node.node_id < 0:
                    await self._obtain_identity()
                await self._heartbeat()
                self._in_touch, self._outdated = True, False
                self._introduced.set()
                await self._report_metrics()
                await self._look_for_changes()
                pause = max(0.0, pause - (self._clock.monotonic() - started))
            except RequestError as error:
                # Our id means nothing there: another cluster's placement manager, or an empty one.
                _log.error("placement manager refuses this node: %s", error)
                self._refuse(error)
            except OutdatedMetadataError as error:
                if not self._outdated:
                    _log.error("placement manager refused: %s", error)
                self._in_touch, self._outdated = False, True
                self.reconcile_soon(certainly=True)
            except HeadraceError as error:
                _log.info("placement manager: %s", error)
                self._in_touch = False
                self.reconcile_soon(certainly=True)  # it may have told us things we did not hear
                pause = min(pause, _RETRY_SECONDS)
            except Exception:
                # A node that goes on serving must not pass for a lost one, whatever broke here.
                _log.exception("keeping in touch with the placement manager failed")
            self._report_now.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._report_now.wait()

    def _refuse(self, error: RequestError) -> None:
        if not self._registered.is_set():
            self._refused = error
            self._registered.set()

    async def _obtain_identity(self) -> None:
        """Durable before anybody else hears of it: an id is asked for once in a store's life."""
        request = m.IdAllocationRequest(timeout_ms=3000, host=self._node.advertise)
        answer = await self.call(Code.ALLOCATE_ID, request, m.IdAllocationResponse)
        if answer.id < 0:
            raise RemoteProtocolError("negative node id")
        await self._node.take_identity(answer.id)

    async def _heartbeat(self) -> None:
        outcomes = await self._links.broadcast(
            Code.HEARTBEAT, self._node.introduction(), timeout=_CALL_SECONDS
        )
        _raise_unless_one(outcomes)
        await self._node.note_metadata(_versions(outcomes))

    async def _look_for_changes(self) -> None:
        """A placement manager that restarted, or leads since a moment ago, has forgotten what it
        had yet to tell us."""
        request = m.ListRangesRequest(timeout_ms=1000)  # of nothing: only the leader answers
        try:
            await self._links.call(Code.LIST_RANGES, request, timeout=1.0)
        except HeadraceError as error:
            _log.info("no leading placement manager: %s", error)
            return
        found = (self._links.leader, self._links.connections)
        if self._known not in (None, found):
            self.reconcile_soon(certainly=True)
        self._known = found

    def report_soon(self) -> None:
        """Something has changed that placement should know at once."""
        self._report_now.set()

    async def _report_metrics(self) -> None:
        report = self._reporter.report(await self._node.load())
        await self._links.broadcast(Code.REPORT_METRICS, report, timeout=_CALL_SECONDS)

    # Reconciliation

    def reconcile_soon(self, *, certainly: bool = False) -> None:
        """Some range waits for the placement manager's word; it is asked for unless it comes.
        `certainly`: what we miss does not show in our ranges."""
        self._missed = self._missed or certainly
        self._wake.set()

    async def _keep_reconciled(self) -> None:
        await self._introduced.wait()
        settings = self._settings
        pause = 0.0
        while True:
            await self._clock.sleep(pause)
            self._wake.clear()
            if self._missed or not self._registered.is_set() or self._node.state.awaits_word():
                reconciled = await self._try_to_reconcile()
                if not reconciled:
                    pause = _RETRY_SECONDS
                    continue
            if self._node.state.awaits_word():
                # The list of all our ranges is long, and we are told most things anyway.
                least = settings.unsettled_interval_ms / 1000
                pause = min(max(2 * pause, least), settings.reconcile_interval_ms / 1000)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(settings.reconcile_interval_ms / 1000):
                    await self._wake.wait()
                    pause = settings.unsettled_interval_ms / 1000
                    continue
            self._missed = True
            pause = 0.0

    async def _try_to_reconcile(self) -> bool:
        self._missed = False
        try:
            await self.reconcile()
        except RequestError as error:
            _log.error("placement manager refuses this node: %s", error)
            self._refuse(error)
        except HeadraceError as error:
            _log.info("reconciliation: %s", error)
        except Exception:
            _log.exception("reconciliation failed")
        else:
            self._registered.set()
            return True
        self._missed = True
        return False

    async def reconcile(self) -> None:
        """Learn ends, deletions, trims and changes of the replica lists that were missed."""
        local = self._node.logs()
        criteria = m.RangeCriteria(data_node=self._node.data_node())
        listed = await self._list(criteria)
        differences = reconcile(local, listed)
        streams: Streams = {}
        if differences.retire:
            streams = await self._ask_about({key.stream_id for key in differences.retire})
        # Whoever told us that may have been put back to an earlier day since the last heartbeat.
        await self._heartbeat()
        await self._node.apply_list(differences, listed, streams)

    async def _ask_about(self, stream_ids: Iterable[int]) -> Streams:
        """Why ranges of ours are not listed; a stream that nobody knows is left out."""
        found: dict[int, Sequence[m.Range] | None] = {}
        criteria = [m.RangeCriteria(stream_id=stream_id) for stream_id in sorted(stream_ids)]
        for start in range(0, len(criteria), _STREAMS_AT_ONCE):
            some = tuple(criteria[start : start + _STREAMS_AT_ONCE])
            request = m.ListRangesRequest(timeout_ms=3000, range_criteria=some)
            answer = await self.call(Code.LIST_RANGES, request, m.ListRangesResponse)
            for asked, result in zip(some, answer.list_responses, strict=True):
                try:
                    raise_for_status(result.status)
                    found[asked.stream_id] = result.ranges
                except NotFoundError as error:
                    if error.data.get("deleted"):
                        found[asked.stream_id] = None
        return found

    async def list_stream(self, stream_id: int) -> list[m.Range]:
        return await self._list(m.RangeCriteria(stream_id=stream_id))

    async def _list(self, criteria: m.RangeCriteria) -> list[m.Range]:
        request = m.ListRangesRequest(timeout_ms=3000, range_criteria=(criteria,))
        answer = await self.call(Code.LIST_RANGES, request, m.ListRangesResponse)
        listed: list[m.Range] = []
        for result in answer.list_responses:
            raise_for_status(result.status)
            listed.extend(result.ranges)
        return listed

    # Seals

    def ask_seal(self, key: RangeKey, reason: str) -> None:
        """Ask for seal-and-new, again and again until the range is sealed here."""
        if key not in self._asked:
            self._asked[key] = None
            _log.info("asking for a seal of %s: %s", key, reason)
            self._tasks.start(self._ask_seal(key), name="ask for a seal")

    async def _ask_seal(self, key: RangeKey) -> None:
        pause = _SEAL_PAUSE_MIN
        try:
            while True:
                await self._clock.sleep(pause)
                log = self._node.state.find(key)
                if log is None or log.sealed:
                    return
                wanted = m.RangeId(
                    stream_id=key.stream_id,
                    range_index=key.range_index,
                    writer_epoch=log.writer_epoch,
                )
                request = m.SealRangesRequest(timeout_ms=3000, ranges=(wanted,))
                try:
                    async with self._room:
                        answer = await self.call(Code.SEAL_RANGES, request, m.SealRangesResponse)
                    for result in answer.seal_responses:
                        raise_for_status(result.status)
                except NotFoundError:
                    return  # deleted: reconciliation takes care of it
                except HeadraceError as error:
                    _log.info("seal of %s not done: %s", key, error)
                self.reconcile_soon()
                pause = min(2 * pause, _SEAL_PAUSE_MAX)
        finally:
            del self._asked[key]

    def ask_open(self, key: RangeKey) -> None:
        """A list names an open range that is not here, and says nothing of its producers."""
        if key not in self._opening:
            self._opening[key] = None
            self._tasks.start(self._ask_open(key), name="ask for a range")

    async def _ask_open(self, key: RangeKey) -> None:
        """Whoever seals the range before it makes the placement manager tell its replicas again."""
        before = m.RangeId(stream_id=key.stream_id, range_index=key.range_index - 1)
        request = m.SealRangesRequest(timeout_ms=3000, ranges=(before,))
        try:
            async with self._room:
                await self.call(Code.SEAL_RANGES, request, m.SealRangesResponse)
        except HeadraceError as error:
            _log.info("range %s not asked for: %s", key, error)
        finally:
            del self._opening[key]

    # Leaving

    async def leave(self) -> None:
        """Say GOAWAY; then wait until others have the open ranges, if there are others."""
        await self._heartbeats.close()  # one after the GOAWAY would take it back
        if not self._in_touch:
            return
        deadline = self._clock.monotonic() + self._settings.drain_timeout_ms / 1000
        movable = await self._movable()
        await self._links.broadcast(
            Code.HEARTBEAT, self._node.introduction(), timeout=_CALL_SECONDS
        )  # who says it is known per connection
        outcomes = await self._links.broadcast(Code.GOAWAY, m.Status(), timeout=1.0)
        if all(isinstance(outcome, HeadraceError) for outcome in outcomes):
            return
        ask_at = self._clock.monotonic() + _DRAIN_ASK_SECONDS
        while movable and self._clock.monotonic() < deadline:
            await self._clock.sleep(_DRAIN_POLL_SECONDS)
            movable = [log for log in movable if not log.sealed]
            if movable and self._clock.monotonic() >= ask_at:
                ask_at += _DRAIN_ASK_SECONDS
                movable = await self._movable()  # the others may be leaving too
        if movable and self._settings.drain_timeout_ms:
            _log.warning("stopping with %d open ranges that did not move in time", len(movable))

    async def _movable(self) -> list[RangeLog]:
        """Open ranges that enough other nodes live for, each on a host of its own."""
        open_ = [log for log in self._node.logs() if not log.sealed]
        if not open_:
            return []
        try:
            answer = await self.call(
                Code.DESCRIBE_CLUSTER, m.DescribeClusterRequest(), m.DescribeClusterResponse
            )
        except HeadraceError as error:
            _log.info("not drained: %s", error)
            return []
        own = self._node.node_id
        others = {
            info.host or info.data_node.advertise_addr
            for info in answer.nodes
            if info.is_alive
            and not info.is_draining
            and info.data_node is not None
            and info.data_node.node_id != own
        }
        return [log for log in open_ if m.ack_quorum(max(1, len(log.replicas))) <= len(others)]


def _versions(outcomes: list[Reply | HeadraceError]) -> list[int]:
    replies = (outcome for outcome in outcomes if not isinstance(outcome, HeadraceError))
    messages = (reply.message for reply in replies)
    return [one.metadata_version for one in messages if isinstance(one, m.HeartbeatResponse)]


def _raise_unless_one(outcomes: list[Reply | HeadraceError]) -> None:
    """One placement manager that knows us is enough; a refusal counts when nobody was silent:
    one that does not lead may be behind."""
    errors: list[HeadraceError] = []
    for outcome in outcomes:
        if isinstance(outcome, HeadraceError):
            errors.append(outcome)
            continue
        if not isinstance(outcome.message, m.HeartbeatResponse):
            errors.append(RemoteProtocolError("unexpected answer to a heartbeat"))
            continue
        try:
            raise_for_status(outcome.message.status)
            return
        except HeadraceError as error:
            errors.append(error)
    silent = [e for e in errors if isinstance(e, UnavailableError | DeadlineError)]
    raise (silent or errors)[0]
