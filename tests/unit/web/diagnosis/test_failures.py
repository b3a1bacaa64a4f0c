"""Errors out of events, and lines of a level out of a log."""

from __future__ import annotations

from headrace.pipeline.container.bad_records import BadRecord
from headrace.pipeline.controller.application.events import Event, EventType
from headrace.web.diagnosis.failures import LINES_BESIDE, errors, filter_lines, with_log

ERROR, INFO = EventType.OPERATOR_ERROR, EventType.START_OPERATOR


def event(reason: str, type: EventType = ERROR, time_ms: int = 1, **data: object) -> Event:
    return Event(1, time_ms, type, reason, data=data)


def test_the_newest_error_comes_first_and_nothing_else() -> None:
    rows = [event("first"), event("fine", INFO), event("second", time_ms=2)]
    assert [one.text for one in errors(rows)] == ["second", "first"]


def test_a_record_that_failed_is_named() -> None:
    # The text is the one that `FoundRecord.describe` makes.
    record = BadRecord("shop/orders", 3, 77, "ValueError: no price")
    text = f"valid failed on {record} in window 6ab3c1f200000011: {record.reason} (dead_letter)"
    log = {"file": "logs/shop.1.2.log", "offset": 400}
    (found,) = errors([event(text, operator="revenue", container="shop.1.2", log=log)])
    assert (found.operator, found.window) == ("valid", "6ab3c1f200000011")
    assert found.record == "shop/orders partition 3 offset 77"
    assert (found.container, found.log_file, found.log_offset) == (
        "shop.1.2",
        "logs/shop.1.2.log",
        400,
    )


def test_an_error_without_a_record_keeps_its_operator() -> None:
    (found,) = errors([event("boom", operator="revenue", log=None)])
    assert (found.operator, found.record, found.log_offset) == ("revenue", "", -1)


def test_the_lines_before_an_error_are_beside_it() -> None:
    (found,) = errors([event("boom")])
    text = "".join(f"line {number}\n" for number in range(40))
    shown = with_log(found, text).log_line.splitlines()
    assert shown[-1] == "line 39"
    assert len(shown) == LINES_BESIDE


LOG = """2026-01-01T00:00:00Z [info     ] started
2026-01-01T00:00:01Z [warning  ] slow
2026-01-01T00:00:02Z [error    ] query_failed
Traceback (most recent call last):
ValueError: no price
26/01/01 00:00:03 WARN TaskSetManager: Lost task
2026-01-01T00:00:04Z [info     ] going on
"""


def test_a_level_keeps_worse_ones_and_their_tracebacks() -> None:
    assert filter_lines(LOG, "") == LOG
    assert filter_lines(LOG, "info") == LOG
    warnings = filter_lines(LOG, "WARNING")
    assert "slow" in warnings
    assert "Lost task" in warnings
    assert "started" not in warnings
    assert filter_lines(LOG, "ERROR").splitlines() == LOG.splitlines()[2:5]
