"""Waits of an idle source: they grow while it is alone, and never add up."""

from headrace.spark.source.following import WAIT_SECONDS_MAX, WAIT_SECONDS_MIN, IdlePace

ROUND = 0.015  # Spark's own part of an idle round


def test_a_source_that_is_alone_waits_longer_and_longer() -> None:
    pace, now, waits = IdlePace(), 100.0, []
    for _ in range(8):
        waits.append(pace.on_asked(now))
        now += waits[-1]
        pace.on_answered(now, idle=True)
        now += ROUND
    assert waits[0] == WAIT_SECONDS_MIN
    assert waits == sorted(waits)
    assert waits[-1] == WAIT_SECONDS_MAX


def test_messages_and_gaps_make_it_short_again() -> None:
    pace = IdlePace()
    for now in (1.0, 1.06, 1.2):
        pace.on_asked(now)
        pace.on_answered(now + 0.05, idle=True)
    pace.on_asked(1.26)
    pace.on_answered(1.3, idle=False)
    assert pace.on_asked(1.31) == WAIT_SECONDS_MIN
    pace.on_answered(1.35, idle=True)
    assert pace.on_asked(1.36) > WAIT_SECONDS_MIN
    pace.on_answered(1.5, idle=True)
    assert pace.on_asked(2.5) == WAIT_SECONDS_MIN, "a trigger interval, a batch, another source"


def test_two_sources_of_a_query_do_not_add_up_their_waits() -> None:
    first, second, now = IdlePace(), IdlePace(), 0.0
    for _ in range(20):
        begun = now
        for pace in (first, second):
            now += pace.on_asked(now)
            pace.on_answered(now, idle=True)
        now += ROUND
    assert now - begun < 2 * WAIT_SECONDS_MIN + 2 * ROUND
