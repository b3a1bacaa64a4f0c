"""What the front page says of pipelines in trouble, from views of real applications."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from headrace.pipeline.controller.application_views import details
from headrace.pipeline.controller.views import UnreadableApplication, WindowPoint
from headrace.web.diagnosis.findings import span
from headrace.web.diagnosis.problems import health, situation, unreadable
from headrace.web.diagnosis.types import PipelineHealth, Problem
from headrace.wire.umbilical import messages as m
from tests.unit.pipeline.controller.application.test_state import Driver
from tests.unit.web.diagnosis.test_trends import NOW, points
from tests.unit.web.stage import CONTAINER, report, running


def judged(driver: Driver, history: dict[int, list[WindowPoint]] | None = None) -> PipelineHealth:
    shift = driver.now - NOW
    moved = {
        id_: [one._replace(at_ms=one.at_ms + shift) for one in rows]
        for id_, rows in (history or {}).items()
    }
    return health(details(driver.application, driver.now), moved, driver.now)


def kinds(found: PipelineHealth) -> list[str]:
    return [one.kind for one in found.problems]


def test_a_pipeline_that_keeps_up_has_no_problem() -> None:
    found = judged(running(), {1: points([0] * 10)})
    assert (found.severity, found.problems, found.next_step) == ("ok", (), "")
    assert found.sentence == "Runs and keeps up"
    assert (found.containers, found.containers_active, found.package) == (1, 1, "0" * 64)


def waiting(driver: Driver, rows: int, seconds: float) -> PipelineHealth:
    """As the log has it: containers told of nothing that waits."""
    view = details(driver.application, driver.now)
    orders, revenue = view.operators
    revenue = replace(revenue, lag=rows, lag_seconds=seconds, still_ms=int(seconds * 1000))
    view = replace(view, lag=rows, lag_seconds=seconds, operators=[orders, revenue])
    shift = driver.now - NOW
    quiet = [one._replace(at_ms=one.at_ms + shift) for one in points([0] * 10)]
    return health(view, {1: quiet}, driver.now)


def test_rows_that_wait_in_the_log_are_told_whatever_containers_say() -> None:
    found = waiting(running(), 2, 5.0)
    assert (found.lag_rows, found.lag_seconds, found.keeps_up) == (2, 5.0, True)
    found = waiting(running(), 2, 90.0)
    assert "standing still" in kinds(found)
    assert (found.severity, found.keeps_up, found.catch_up) == ("critical", False, "never")
    assert "revenue of shop has finished no batch for 90 s, and 2 rows wait" in [
        one.title for one in found.problems
    ]


def test_a_crash_loop_does_not_keep_up() -> None:
    driver = running()
    driver.application.operators[2].failures = 2  # type: ignore[index]
    found = waiting(driver, 2, 5.0)
    assert (found.lag_rows, found.keeps_up, found.severity) == (2, False, "critical")
    assert found.sentence == "revenue of shop fails again and again"


def test_one_that_falls_behind_says_who_limits_it_and_what_helps() -> None:
    slow = points([1_000 * one for one in range(1, 31)], duration_ms=1_000)
    found = judged(running(), {1: slow, 2: [one._replace(lag=0) for one in slow]})
    assert kinds(found) == ["falls behind"]
    assert found.catch_up == "never"
    assert found.bottleneck is not None
    assert (found.bottleneck.operator, found.bottleneck.container) == ("revenue", CONTAINER)
    assert found.bottleneck.busy == 1.0
    problem = found.problems[0]
    assert problem.severity == "warning"
    assert "27 s behind and does not catch up" in problem.title
    assert "1,100 rows/s arrive, 100 are processed; 30,000 wait" in problem.detail
    assert "declare it STATELESS=True" in problem.next_step
    assert problem.actions == ("logs",)


def test_one_that_is_declared_stateless_is_scaled() -> None:
    slow = points([1_000 * one for one in range(1, 31)], duration_ms=1_000)
    driver = running()
    driver.application.record.plan["operators"][1]["attributes"] = {"STATELESS": True}
    problem = judged(driver, {1: slow, 2: slow}).problems[0]
    assert problem.actions == ("scale",)
    assert problem.next_step == "Run revenue in more containers (scale)."


def test_one_that_keeps_state_is_not_to_be_scaled() -> None:
    driver = running()
    driver.application.operators[2].statistics.metrics["state_rows"] = 7  # type: ignore[index]
    slow = points([1_000 * one for one in range(1, 31)], duration_ms=1_000)
    found = judged(driver, {1: slow, 2: slow})
    assert "scale" not in found.problems[0].actions
    assert "VCORES" in found.problems[0].next_step


def test_a_long_lag_is_critical_and_one_that_falls_is_not() -> None:
    far = judged(running(), {1: points([100_000 + one for one in range(10)])})
    assert (far.severity, kinds(far)) == ("critical", ["falls behind"])
    near = judged(running(), {1: points([20_000 - 500 * one for one in range(10)], rows=1_000)})
    assert (near.severity, kinds(near)) == ("notice", ["catching up"])
    assert near.catch_up_seconds == pytest.approx(15_500 / 500)


def test_a_stage_that_stands_still_is_critical() -> None:
    found = judged(running(), {1: [one._replace(at_ms=one.at_ms - 90_000) for one in points([5])]})
    assert kinds(found)[0] == "standing still"
    assert "no batch for 90 s, and 5 rows wait" in found.sentence


def test_a_container_that_is_down_is_named_with_its_wait() -> None:
    driver = running()
    driver.exit(CONTAINER, 1)
    found = judged(driver)
    assert kinds(found) == ["container down"]
    assert found.problems[0].container == CONTAINER
    assert "Container 1 of shop went down and is started again" in found.sentence
    assert "starts again in" in found.problems[0].detail
    assert (found.severity, found.containers_active) == ("warning", 0)


def test_one_that_comes_down_again_and_again_is_critical() -> None:
    driver = running()
    for run in (1, 2, 3):
        driver.exit(f"shop.1.{run}", 1)
        if run < 3:
            driver.tick(60_000)
            driver.beat(f"shop.1.{run + 1}")
    found = judged(driver)
    assert (found.severity, kinds(found)) == ("critical", ["container down"])
    assert "3 times" in found.problems[0].detail


def test_the_advice_stays_the_same_through_a_restart() -> None:
    """Down, starting, running and not yet where it was: one problem, and it says one thing."""
    driver = running()
    seen: list[tuple[str, str, str, str]] = []
    details = []

    def look() -> None:
        (problem,) = judged(driver).problems
        seen.append((problem.id, problem.severity, problem.title, problem.next_step))
        details.append(problem.detail)

    driver.exit(CONTAINER, 1)
    look()
    driver.tick(60_000)
    look()
    driver.beat("shop.1.2")
    look()
    driver.beat("shop.1.2", m.OperatorHeartbeat(1, m.DeployState.ACTIVE))
    look()
    assert len(set(seen)) == 1, seen
    assert "starts again in" in details[0]
    assert "is starting" in details[1]
    assert "runs again" in details[-1]


def test_one_cause_is_one_problem_however_many_it_takes_down() -> None:
    driver = running()
    error = "ValueError: no price for 17\nTraceback"
    request = m.ReportErrorRequest(CONTAINER, (1, 2), error, m.LogFileInfo("logs/x.log", 12))
    driver.perform(driver.application.on_error(request, driver.now))
    for operator in driver.application.operators.values():
        operator.failures = 2
    view = details(driver.application, driver.now)
    history = {1: points([5] * 10), 2: points([5] * 10)}  # and rows wait for it
    shift = driver.now - NOW
    moved = {
        id_: [one._replace(at_ms=one.at_ms + shift - 90_000) for one in rows]
        for id_, rows in history.items()
    }
    (problem,) = health(view, moved, driver.now).problems
    assert problem.title == "orders and revenue of shop fail together again and again"
    assert problem.detail == "ValueError: no price for 17"
    # The operator that an error names is the one; another number makes no other cause.
    named = []
    for number, one in enumerate(view.operators):
        place = f"shop/orders partition 0 offset {number}"
        error = f"revenue failed on {place} in window 6553f10000000001: no price"
        named.append(replace(one, last_error=error))
    view = replace(view, operators=named)
    (problem,) = health(view, moved, driver.now).problems
    assert problem.title == "revenue of shop fails again and again"
    assert problem.operator == "revenue"
    # Two causes are two.
    named[0] = replace(named[0], last_error="KeyError: sku")
    view = replace(view, operators=named)
    assert kinds(health(view, moved, driver.now)) == ["operator fails", "operator fails"]


def test_a_failed_pipeline_shows_its_error() -> None:
    driver = Driver(attempts=0)
    driver.start()
    driver.beat(CONTAINER)
    request = m.ReportErrorRequest(
        CONTAINER, (2,), "ValueError: no price\nTraceback", m.LogFileInfo("logs/x.log", 12)
    )
    driver.perform(driver.application.on_error(request, driver.now))
    for _ in range(4):
        driver.exit(driver.application.containers[0].id, 1)
        driver.tick(60_000)
    assert driver.application.phase.value == "FAILED"
    found = judged(driver)
    assert (kinds(found), found.severity) == (["failed"], "critical")
    assert found.problems[0].detail == "ValueError: no price"
    assert found.problems[0].operator == "revenue"
    assert "resume" in found.problems[0].actions
    assert found.last_error is not None
    assert found.last_error.log_offset == 12


def test_an_operator_that_fails_is_named() -> None:
    driver = running()
    driver.beat(CONTAINER, m.OperatorHeartbeat(2, m.DeployState.FAILED), report(1, 3, driver.now))
    found = judged(driver)
    assert "operator fails" in kinds(found)
    assert (found.severity, found.problems[0].operator) == ("warning", "revenue")
    assert "failed and is tried again" in found.sentence
    driver.application.operators[2].failures = 2  # type: ignore[index]
    found = judged(driver)
    assert found.severity == "critical"
    assert "fails again and again" in found.sentence


def test_a_container_that_says_nothing_is_critical() -> None:
    driver = running()
    driver.now += 20_000
    found = judged(driver)
    assert "container silent" in kinds(found)
    assert "nothing for 20 s" in found.sentence


def test_a_container_that_starts_is_only_a_notice() -> None:
    driver = Driver()
    driver.start()
    found = judged(driver)
    assert (kinds(found), found.severity) == (["container starting"], "notice")


def test_dead_and_late_rows_count_while_they_are_fresh() -> None:
    fresh = [one._replace(rows_bad=2, rows_late=1) for one in points([0] * 5)]
    found = judged(running(), {1: fresh})
    assert sorted(kinds(found)) == ["dead rows", "late rows"]
    assert (found.rows_dead_lately, found.rows_late_lately) == (10, 5)
    old = [one._replace(at_ms=one.at_ms - 700_000) for one in fresh]
    assert "dead rows" not in kinds(judged(running(), {1: old}))


def test_state_and_watermark() -> None:
    behind = [
        one._replace(state_bytes=2 << 30, state_rows=9, watermark_ms=NOW - 7_200_000)
        for one in points([0] * 5)
    ]
    driver = running()
    found = health(replace(details(driver.application, NOW), containers=[]), {1: behind}, NOW)
    assert found.watermark_delay_seconds == pytest.approx(7_200)
    assert (found.state_rows, found.state_bytes) == (9, 2 << 30)
    assert sorted(kinds(found)) == ["large state", "watermark behind"]
    assert "2 h behind" in "".join(one.title for one in found.problems)
    quiet = [one._replace(rows_in=0, rows_out=0, state_bytes=0) for one in behind]
    found = health(replace(details(driver.application, NOW), containers=[]), {1: quiet}, NOW)
    assert found.watermark_delay_seconds == pytest.approx(7_200)
    assert found.problems == (), "nobody sends, and that is no problem of the pipeline's"


def test_one_that_was_stopped_is_no_problem() -> None:
    driver = running()
    driver.stop()
    assert judged(driver).sentence.startswith("Stopping")
    driver.exit(CONTAINER, 0)
    found = judged(driver)
    assert (found.severity, found.problems) == ("ok", ())
    assert found.sentence.startswith("Stopped; resume it")
    stopped = judged(driver, {1: points([0] * 10)})
    assert (stopped.catch_up, stopped.lag_seconds) == ("unknown", None), "nobody looks any more"
    busy = points([5] * 10, duration_ms=1_000)
    rested = judged(driver, {1: busy, 2: busy})
    assert (rested.bottleneck, rested.rows_per_second, rested.arrival_per_second) == (None, 0, 0)


def named(name: str, severity: Any, lag: float = 0.0, state: str = "RUNNING") -> PipelineHealth:
    problem = Problem(
        id=name, kind="x", severity=severity, subject="pipeline", name=name, title="t"
    )
    return PipelineHealth(
        name=name,
        state=state,
        severity=severity,
        sentence="",
        next_step="",
        lag_seconds=lag,
        problems=() if severity == "ok" else (problem,),
    )


def test_the_worst_comes_first() -> None:
    healths = [
        named("calm", "ok"),
        named("old", "ok", state="STOPPED"),
        named("slow", "warning", 5.0),
        named("slower", "warning", 50.0),
        named("bad", "critical"),
    ]
    node = Problem(id="n", kind="x", severity="critical", subject="node", name="1", title="t")
    found = situation(healths, [node], NOW)
    assert [one.name for one in found.pipelines] == ["bad", "slower", "slow", "calm", "old"]
    assert [one.name for one in found.problems] == ["1", "bad", "slow", "slower"]
    assert found.severity == "critical"
    assert situation([named("calm", "ok")], [], NOW).severity == "ok"


def test_a_record_that_cannot_be_read_is_told() -> None:
    found = unreadable(
        UnreadableApplication(
            name="old", package="", entry="", submitted_ms=0, last_error="no such shape"
        )
    )
    assert (found.severity, found.problems[0].detail) == ("critical", "no such shape")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (90, "90 s"), (600, "10 min"), (7_200, "2 h"), (400_000, "5 d")],
)
def test_spans_are_short(seconds: float, text: str) -> None:
    assert span(seconds) == text
