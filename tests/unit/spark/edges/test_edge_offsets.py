"""How many windows of an edge enter a batch, and where their rows are."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import CorruptionError, OffsetOutOfRangeError
from headrace.spark.edges.offsets import (
    Admitted,
    ApplicationWindows,
    EdgeLimits,
    EdgeOffset,
    Share,
    admit,
    encode_index,
    ended,
    spans_between,
)
from headrace.spark.source.batch_plan import OtherTopicError
from headrace.wire.iggy.messages.extensions import (
    ListedPublisher,
    ListedWindow,
    WindowsListed,
    WindowSpan,
)
from headrace.wire.umbilical.windows import WindowGrid


def listing(
    closed: int,
    windows: dict[int, tuple[int, int]],
    *,
    complete: int | None = None,
    purged: int = -1,
    uid: int = 7,
) -> WindowsListed:
    """`windows`: rows and bytes by window, one message each, one after the other."""
    publisher = ListedPublisher(
        name="a",
        partition=0,
        last_window=closed,
        windows=tuple(
            ListedWindow(window, rows, (WindowSpan(0, 0, at, 1, size),))
            for at, (window, (rows, size)) in enumerate(sorted(windows.items()))
        ),
    )
    return WindowsListed(
        cluster="c",
        uid=uid,
        closed=closed,
        complete=closed if complete is None else complete,
        purged=purged,
        resets=0,
        publishers=(publisher,),
    )


def test_a_batch_reads_up_to_what_every_edge_has_closed() -> None:
    fast, slow = listing(9, {4: (1, 1), 8: (1, 1)}), listing(6, {5: (1, 1)}, uid=8)
    assert admit(3, [fast]) == Admitted(8, rows=True)
    assert admit(3, [fast, slow]) == Admitted(5, rows=True)
    assert admit(5, [fast, slow]) == Admitted(6, rows=False), "nothing to read there"
    assert admit(6, [fast, slow]) == Admitted(6, rows=False)
    assert admit(9, [listing(4, {})]) == Admitted(9, rows=False), "they were reset"


def test_limits_count_windows_rows_and_bytes_and_let_one_in() -> None:
    edge = [listing(10, {2: (10, 100), 4: (10, 100), 7: (10, 100)})]
    assert admit(-1, edge, EdgeLimits(windows_max=2)).end == 4
    assert admit(-1, edge, EdgeLimits(windows_max=3)).end == 7
    assert admit(-1, edge, EdgeLimits(rows_max=25)).end == 4
    assert admit(-1, edge, EdgeLimits(rows_max=30)).end == 7
    assert admit(-1, edge, EdgeLimits(bytes_max=1)).end == 2
    assert admit(4, edge, EdgeLimits(windows_max=1)).end == 7
    assert admit(-1, [listing(10, {2: (1, 1)}, complete=2)]).end == 2, "the rest is not listed"


def test_batches_end_with_application_windows() -> None:
    grid = WindowGrid(0, 500)
    application = ApplicationWindows(grid, 4)
    edge = [listing(9, {0: (1, 1), 3: (1, 1), 5: (1, 1)})]
    assert admit(-1, edge, application=application) == Admitted(7, rows=True)
    assert admit(-1, edge, EdgeLimits(windows_max=1), application).end == 3, "whole ones only"
    assert admit(-1, edge, EdgeLimits(windows_max=2), application).end == 3
    assert admit(7, edge, application=application) == Admitted(7, rows=False)
    assert admit(-1, [listing(2, {0: (1, 1)})], application=application).rows is False


LISTS = st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 9), st.integers(1, 9)))


@given(
    st.tuples(LISTS, LISTS),
    st.tuples(st.integers(-1, 20), st.integers(-1, 20)),
    st.tuples(st.integers(-1, 20), st.integers(0, 5), st.integers(0, 5)),
    st.builds(
        EdgeLimits,
        windows_max=st.none() | st.integers(1, 5),
        rows_max=st.none() | st.integers(1, 20),
        bytes_max=st.none() | st.integers(1, 20),
    ),
)
def test_the_source_that_is_asked_first_ends_lowest(
    windows: tuple[dict[int, tuple[int, int]], dict[int, tuple[int, int]]],
    closed: tuple[int, int],
    moved: tuple[int, int, int],
    limits: EdgeLimits,
) -> None:
    """Two edges of one query: the second source starts no lower, and sees no less."""
    start, ahead, later = moved
    first = admit(start, [listing(closed[0], windows[0]), listing(closed[1], windows[1])], limits)
    second = admit(
        start + ahead,
        [listing(closed[0] + later, windows[0]), listing(closed[1] + later, windows[1])],
        limits,
    )
    assert second.end >= first.end
    assert first.end >= start


def test_the_spans_of_windows_are_joined_where_they_touch() -> None:
    spans = {2: [(0, 0, 5)], 3: [(0, 5, 2), (1, 0, 3)], 4: [(0, 9, 1)], 6: [(0, 10, 4)]}
    publisher = ListedPublisher(
        name="a",
        partition=0,
        last_window=6,
        windows=tuple(
            ListedWindow(window, 1, tuple(WindowSpan(p, 0, first, n, 1) for p, first, n in each))
            for window, each in spans.items()
        ),
    )
    page = WindowsListed(
        cluster="c", uid=7, closed=6, complete=6, purged=-1, resets=1, publishers=(publisher,)
    )

    def between(start: int, end: int, skip: int = -1) -> list[tuple[int, int, int]]:
        found = spans_between([page], "t", start=start, end=end, skip_until=skip)
        assert all(span.key[0] == "7" for span in found)
        return [(span.partition, span.start, span.end) for span in found]

    assert between(-1, 6) == [(0, 0, 7), (0, 9, 14), (1, 0, 3)], "7 and 8 were voided"
    assert between(2, 4) == [(0, 5, 7), (0, 9, 10), (1, 0, 3)]
    assert between(-1, 6, skip=3) == [(0, 9, 14)]
    assert between(4, 5) == []


def test_an_offset_names_the_cluster_the_topic_and_the_window() -> None:
    offset = EdgeOffset("c", "7", 5)
    assert offset.to_json() == {"v": 1, "c": "c", "w": {"7": 5}}
    assert EdgeOffset.from_json(offset.to_json()) == offset
    offset.check(listing(9, {}, purged=5))
    for wrong in ({}, {"v": 2, "c": "c", "w": {"7": 5}}, {"v": 1, "c": "c", "w": {}},
                  {"v": 1, "c": "c", "p": {"7/0": [0, 5]}}):  # fmt: skip
        with pytest.raises(CorruptionError):
            EdgeOffset.from_json(wrong)
    with pytest.raises(OtherTopicError, match="pipeline remove"):
        offset.check(listing(9, {}, uid=8))
    with pytest.raises(OffsetOutOfRangeError):
        offset.check(listing(9, {}, purged=6))


def test_an_edge_ended_when_all_its_publishers_did() -> None:
    assert not ended(listing(3, {}))


def indexed(window: int, index: bytes, *spans: tuple[int, int]) -> WindowsListed:
    found = tuple(WindowSpan(0, 0, first, count, 10 * count) for first, count in spans)
    publisher = ListedPublisher(
        name="a", partition=0, last_window=window, windows=(ListedWindow(window, 1, found, index),)
    )
    return WindowsListed(
        cluster="c",
        uid=7,
        closed=window,
        complete=window,
        purged=-1,
        resets=0,
        publishers=(publisher,),
    )


def test_an_instance_reads_only_its_share_where_shares_are_kept_apart() -> None:
    labels = [(0, 2), (1, 1), (3, 4), (0, 1), (0, 1), (2, 1)]
    page = indexed(5, encode_index(3, labels), (10, 4), (20, 6))

    def read(*keys: int, mask: int = 3) -> list[tuple[int, int]]:
        share = Share(mask, keys)
        found = spans_between([page], "t", start=-1, end=5, share=share)
        return [(span.start, span.end) for span in found]

    assert read(0) == [(10, 12), (23, 25)]
    assert read(1) == [(12, 13)]
    assert read(3) == [(13, 14), (20, 23)], "it goes on in the next span"
    assert read(0, 1, 2, 3) == [(10, 14), (20, 26)]
    assert read(0, mask=1) == [(10, 14), (20, 26)], "made for another mask: all is looked at"


def test_an_index_that_does_not_tell_of_every_message_tells_nothing() -> None:
    assert encode_index(0, [(0, 1)]) == encode_index(3, []) == b""
    assert encode_index(255, [(n % 256, 1000) for n in range(2000)]) == b"", "too long to keep"
    short = indexed(5, encode_index(1, [(0, 1)]), (0, 2))
    (span,) = spans_between([short], "t", start=-1, end=5, share=Share(1, (1,)))
    assert (span.start, span.end) == (0, 2)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=12),
    st.sets(st.integers(0, 3)),
    st.data(),
)
def test_shares_are_found_in_whatever_runs_a_window_lies(
    labels: list[tuple[int, int]], keys: set[int], data: st.DataObject
) -> None:
    """One label for each message, however the messages are spread over runs."""
    each = [label for label, count in labels for _ in range(count)]
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(each) - 1)))) | {0, len(each)})
    spans: list[tuple[int, int]] = []
    places: list[int] = []
    gap = 0
    for first, end in pairwise(cut for cut in cuts if cut <= len(each)):
        spans.append((first + gap, end - first))
        places += range(first + gap, end + gap)
        gap += 3
    page = indexed(5, encode_index(3, labels), *spans)
    share = Share(3, tuple(sorted(keys)))
    found = spans_between([page], "t", start=-1, end=5, share=share)
    read = [offset for span in found for offset in range(span.start, span.end)]
    assert read == [place for place, label in zip(places, each, strict=True) if label in keys]
