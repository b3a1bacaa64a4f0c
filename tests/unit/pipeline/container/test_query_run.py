"""One query's batches, without Spark: windows, replays, recordings, how far a long batch is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from headrace.errors import CorruptionError
from headrace.ids import WindowId
from headrace.pipeline.container.query_run import QueryRun, ReachedWindow, Recording
from headrace.pipeline.container.window_log import WindowLog
from headrace.pipeline.declare.queries import Query
from headrace.spark.edges import sink as edge_sink
from headrace.spark.options import parse_sink
from headrace.spark.server import Window
from headrace.spark.session.queries import QueryIdentity
from headrace.wire.umbilical.windows import WindowGrid, format_window
from tests.simulator.disk import SimulatedDisk
from tests.simulator.random import SimulatedRandom

START = 1_700_000_000_000
GRID = WindowGrid(START, 500)
CHECKPOINT = "/data/checkpoints/store"
IDENTITY: Any = None


class Rows:
    """A batch of rows, as far as a recording looks at it."""

    def limit(self, count: int) -> Rows:
        return self

    def toJSON(self) -> Rows:
        return self

    def collect(self) -> list[str]:
        return ['{"n": 1}', '{"n": 2}']


class World:
    def __init__(self) -> None:
        self.disk = SimulatedDisk(SimulatedRandom(1))
        self.given: list[int] = []
        self.now = 0.0
        self.during: Callable[[], None] = lambda: None
        self.run = self.make()

    def make(self, **more: Any) -> QueryRun:
        windows = WindowLog(self.disk, CHECKPOINT, GRID)
        query = Query(name="store", frame=Rows(), mode="append", tail=self.tail)
        lock: Any = None
        return QueryRun(query, windows, lock, self.disk, lambda: self.now, **more)

    def tail(self, batch: Any) -> Any:
        self.given.append(1)
        self.during()
        return batch

    def batch(self, number: int, *edges: int) -> None:
        planned = json.dumps({"batchTimestampMs": START + 5_000 * number})
        offsets = [json.dumps({"w": {str(n): edge}}) for n, edge in enumerate(edges)]
        self.disk.make_folder(f"{CHECKPOINT}/offsets")
        self.disk.write_atomic(
            f"{CHECKPOINT}/offsets/{number}", "\n".join(["v1", planned, *offsets]).encode()
        )
        self.run.on_batch(Rows(), number, IDENTITY)


def test_a_batch_gets_a_window_and_a_replay_the_same() -> None:
    world = World()
    world.batch(0)
    window, rows = world.run.batches[0]
    assert (window.window, window.replay, rows) == (GRID.window_at(START), False, 0)
    world.run = world.make()
    world.batch(0)
    assert world.run.batches[0][0] == type(window)(window.window, window.previous, replay=True)
    assert len(world.given) == 2


def test_batches_after_a_rollback_of_the_query_have_another_publisher(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a query that was not rolled back, as others were, are known by the old one."""
    seen: list[tuple[str, int]] = []

    def publish(frame: Any, sink: Any, window: Window, key: Any) -> int:
        seen.append((window.publisher, window.number))
        return 0

    monkeypatch.setattr("headrace.spark.sink.publish.publish", publish)
    sink = parse_sink({"address": "127.0.0.1:8090", "topic": "shop/out"})
    world = World()

    def send(number: int) -> None:
        identity = QueryIdentity("abc", "run")
        world.make()._publish(Rows(), sink, batch_id=number, identity=identity)

    send(1)
    WindowLog(world.disk, "/data/checkpoints/other", GRID).roll_back(GRID.window_at(START), 1)
    send(1)
    WindowLog(world.disk, CHECKPOINT, GRID).roll_back(GRID.window_at(START), 2)
    send(1)
    send(2)
    (first, _), again, (later, _), (last, _) = seen
    assert again == (first, 1)
    assert later == last == f"{first}/2"


def test_at_most_once_leaves_out_what_may_have_been_given() -> None:
    world = World()
    world.batch(0)
    world.run = world.make(at_most_once=True)
    world.batch(0)
    assert len(world.given) == 1
    world.batch(1)
    assert len(world.given) == 2


def test_a_recording_keeps_the_next_windows_and_ends() -> None:
    world = World()
    world.run.recording = Recording("/data/recordings/r", 2)
    for number in range(3):
        world.batch(number)
    names = [f"{format_window(GRID.window_at(START + 5_000 * n))}.jsonl" for n in range(2)]
    assert world.disk.list("/data/recordings/r") == sorted(names)
    assert world.disk.read(f"/data/recordings/r/{names[0]}") == b'{"n": 1}\n{"n": 2}\n'
    assert world.run.recording is None


def test_a_long_batch_tells_how_far_it_is() -> None:
    world = World()
    seen: list[int | None] = []

    class Running:
        def tasks_finished(self) -> int:
            return 7

    world.run.running = Running()  # type: ignore[assignment]  # as far as it is asked

    def look() -> None:
        seen.append(world.run.long_batch())
        world.now += 21
        seen.append(world.run.long_batch())

    world.during = look
    world.batch(2)
    assert seen == [None, 2_000_007]
    assert world.run.long_batch() is None


def test_it_stops_before_the_first_batch_beyond_its_window() -> None:
    world = World()
    reached, beyond = (GRID.window_at(START + 500 * n) for n in (4, 9))
    world.run.until = WindowId(reached)
    world.batch(0, reached)
    with pytest.raises(ReachedWindow):
        world.batch(1, beyond)
    assert world.run.stopped_at == reached
    assert len(world.given) == 1
    assert world.run.windows.last() == reached


def test_a_checkpoint_that_fits_nothing_is_told_apart() -> None:
    world = World()
    world.disk.make_folder(f"{CHECKPOINT}/offsets")
    with pytest.raises(CorruptionError):
        world.run.on_batch(Rows(), 0, IDENTITY)  # nothing was planned
    assert world.run.checkpoint_lost


def test_what_the_broker_says_is_no_loss_of_the_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else everything would be computed again because of a damaged answer."""
    world = World()
    world.run.edge = object()  # type: ignore[assignment]  # only handed on

    def damaged(sink: object) -> int:
        raise CorruptionError("a reply that makes no sense")

    monkeypatch.setattr(edge_sink, "last_closed", damaged)
    with pytest.raises(CorruptionError):
        world.batch(0)
    assert not world.run.checkpoint_lost


def test_an_edge_is_published_behind_what_its_publisher_has_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when idle windows passed while the batch was on its way."""
    world = World()
    edge: Any = object()
    world.run.edge = edge
    closed = [-1]
    published: list[tuple[int, int]] = []

    def publish(frame: object, sink: object, *, window: int, previous: int) -> int:
        assert (sink, previous) == (edge, closed[0])
        published.append((window, previous))
        closed[0] = window
        return 5

    monkeypatch.setattr(edge_sink, "last_closed", lambda sink: closed[0])
    monkeypatch.setattr(edge_sink, "publish_window", publish)
    read, passed, later = (GRID.window_at(START + 500 * n) for n in (4, 6, 9))
    world.batch(0, read)
    world.disk.make_folder(f"{CHECKPOINT}/commits")
    world.disk.write_atomic(f"{CHECKPOINT}/commits/0", b"v1")
    world.run.windows.advance(passed, lambda window: closed.__setitem__(0, window))
    world.batch(1, later)
    assert published == [(read, -1), (later, passed)]
    assert world.run.batches[1][1] == 5
