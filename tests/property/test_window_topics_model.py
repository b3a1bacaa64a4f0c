"""Window topics under random publishers, changes, resets, purges and restarts, beside a reader.

Whatever happens, a reader that takes what is closed sees each row once: nothing appears in a window
after the topic was closed through it, and what was voided is published again after it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.broker.partitions.offsets import Place
from headrace.broker.windows import publishers as p
from headrace.broker.windows import window_topics as w
from headrace.errors import HeadraceError
from headrace.wire.iggy.refusals import PublisherFencedError, WindowOrderError

TOPIC = 9
NAMES = ("a", "b", "c")
SETS = st.lists(st.sampled_from(NAMES), min_size=1, unique=True)
STEPS = st.integers(1, 4)


def make() -> p.Publishers:
    return p.Publishers(publishers_max=10, windows_kept=3, topic_windows_max=1000)


class Windows(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = make()
        self.epoch = 1
        self.offsets = dict.fromkeys(range(3), 0)
        self.published: dict[str, dict[int, p.OffsetRun]] = {name: {} for name in NAMES}
        """By publisher and window, what is not voided."""
        self.read_through = -1
        self.read: list[tuple[str, int]] = []
        self.told = -1
        self.apply(self.state.topics.set_publishers(TOPIC, after=-1, names=["a", "b"], epoch=0,
                                                    last=self.state.last))  # fmt: skip

    def apply(self, event: p.Event | None) -> None:
        if event is not None:
            kind, body = p.encode(event)
            self.state.apply(p.VERSION, kind, body)

    @property
    def closed(self) -> int:
        return self.state.closed(TOPIC)

    # -- publishers

    @rule(name=st.sampled_from(NAMES), fresh=st.booleans())
    def open(self, name: str, fresh: bool) -> None:
        if fresh:
            self.epoch += 1
        try:
            self.apply(self.state.open(name, str(self.epoch), 1, self.epoch))
        except PublisherFencedError:
            assert not fresh

    @rule(name=st.sampled_from(NAMES), step=STEPS, rows=st.booleans(), last=st.booleans())
    def close(self, name: str, step: int, rows: bool, last: bool) -> None:
        publisher = self.state.named(name)
        if publisher is None or publisher.ended or not publisher.run:
            return
        window = publisher.last + step
        try:
            partition = self.state.topics.get(TOPIC).partition_of(name, window)
        except WindowOrderError:
            partition = 0
        place = Place(TOPIC, partition, 0)
        places = [place] if rows and self.state.topics.of(name) else []
        try:
            todo = self.state.check_close(
                publisher, epoch=publisher.epoch, previous=publisher.last, window=window,
                places=places,
            )  # fmt: skip
        except WindowOrderError:
            return
        assert todo
        if self.state.topics.of(name) is not None:
            assert window > self.told, "nothing appears where readers have been"
        runs: tuple[p.OffsetRun, ...] = ()
        if places:
            run = p.OffsetRun(place, self.offsets[partition], 1, 10)
            self.offsets[partition] += 1
            self.published[name][window] = run
            runs = (run,)
        self.apply(p.Done(publisher.uid, p.Closed(window, b"", runs, len(runs)), last))

    # -- the controller

    @rule(names=SETS, ahead=st.integers(-1, 6), raised=st.booleans())
    def set_publishers(self, names: list[str], ahead: int, raised: bool) -> None:
        if raised:
            self.epoch += 1
        after = self.closed + ahead
        try:
            event = self.state.topics.set_publishers(
                TOPIC, after=max(-1, after), names=names, epoch=self.epoch if raised else 0,
                last=self.state.last,
            )  # fmt: skip
        except WindowOrderError:
            return
        before = self.closed
        self.apply(event)
        assert self.closed == before, "a change alone closes nothing and opens nothing"

    @rule(back=st.integers(0, 8), stale=st.booleans())
    def reset(self, back: int, stale: bool) -> None:
        window = max(-1, self.closed - back)
        if not stale:
            self.epoch += 1
        try:
            event = self.state.reset(TOPIC, window, self.epoch)
        except HeadraceError:
            return
        self.apply(event)
        if event is None:
            return
        for name, windows in self.published.items():
            last = self.state.last(name)
            assert last <= window or self.state.topics.of(name) is None
            self.published[name] = {each: run for each, run in windows.items() if each <= last}
        self.told = min(self.told, window)
        # Readers are rolled back along with whom they read from.
        self.read = [(name, each) for name, each in self.read if each <= window]
        self.read_through = min(self.read_through, window)

    @rule(back=st.integers(0, 4))
    def purge(self, back: int) -> None:
        """Up to where the reader has been, as the controller does."""
        window = self.read_through - back
        if window >= 0:
            self.apply(self.state.topics.purge(TOPIC, window, self.closed))

    @rule()
    def restart(self) -> None:
        version, chunks = self.state.snapshot()
        restored = make()
        restored.restore(version, [bytes(chunk) for chunk in chunks])
        assert list(restored.snapshot()[1]) == list(self.state.snapshot()[1])
        self.state = restored

    # -- the reader

    @rule()
    def read_all(self) -> None:
        closed = self.closed
        for member in self.state.members(TOPIC):
            for each in member.after(self.read_through):
                if each.window <= closed and each.runs:
                    assert self.published[member.name][each.window] == each.runs[0]
                    self.read.append((member.name, each.window))
        self.read_through = max(self.read_through, closed)

    @invariant()
    def closed_never_moves_back(self) -> None:
        assert self.closed >= self.told
        self.told = self.closed

    @invariant()
    def each_row_is_read_once(self) -> None:
        wanted = {
            (name, window)
            for name, windows in self.published.items()
            for window in windows
            if window <= self.read_through
        }
        assert len(self.read) == len(set(self.read))
        assert set(self.read) == wanted

    @invariant()
    def memory_is_bounded_by_what_is_not_purged(self) -> None:
        purged = self.state.topics.get(TOPIC).purged
        for member in self.state.members(TOPIC):
            with_rows = [each for each in member.closed if each.runs]
            assert all(each.window > purged for each in member.closed)
            assert len(member.closed) <= 2 * len(with_rows) + 2


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_an_era_is_found_by_its_window() -> None:
    topic = w.WindowTopic(1, [w.Era(-1, ("a",)), w.Era(4, ("b", "a")), w.Era(9, ("b",))])
    assert [topic.partition_of("a", window) for window in (0, 4, 5, 9)] == [0, 0, 1, 1]
    assert topic.partition_of("b", 10) == 0
    for name, window in (("b", 4), ("a", 10), ("c", 3)):
        try:
            topic.partition_of(name, window)
        except WindowOrderError:
            continue
        raise AssertionError(f"{name} has no part in {window}")
