"""Errors as Spark words them: the sentence in them, and whether another attempt can help."""

from __future__ import annotations

import pytest

from headrace.pipeline.controller.application.lifecycle import Operator, Phase
from headrace.pipeline.failures import Kind, kind_of, readable, sentence
from headrace.pipeline.plan.logical import LogicalPlan
from headrace.pipeline.plan.physical import make_physical_plan
from headrace.wire.umbilical import messages as m
from tests.unit.pipeline.controller.application.test_state import (
    FAILED,
    Driver,
    fail_once,
    plan,
    up,
    window,
)

PHYSICAL = make_physical_plan(LogicalPlan.from_json(plan())).operators[1]

UNRESOLVED = (
    "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name "
    "`nope` cannot be resolved. Did you mean one of the following? [`value`]. SQLSTATE: 42703"
)


def proxied(raised: str) -> str:
    """A function that Spark calls for a batch raised something."""
    return f"""An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/lib/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/package/shop.py", line 16, in store
    rows.select("nope").collect()
    ^^^^^^^^^^^^^^^^^^^
{raised}

=== Streaming Query ===
Identifier: [id = bd38acb6, runId = 2b945ae1]
Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink
"""  # noqa: E501 - as Spark has it


ANALYSIS = proxied(
    f"pyspark.errors.exceptions.captured.AnalysisException: {UNRESOLVED};\n'Project ['nope]\n+- x"
)
NO_STORE = (
    "[UNSUPPORTED_FEATURE.STORE_BACKEND_NOT_SUPPORTED_FOR_TWS] The feature is not supported: Store "
    "backend A is not supported by TransformWithState operator. SQLSTATE: 0A000"
)


@pytest.mark.parametrize(
    ("text", "found", "kind"),
    [
        (ANALYSIS, UNRESOLVED, Kind.MISTAKE),
        (f"ConfigError: r: {UNRESOLVED}", f"ConfigError: r: {UNRESOLVED}", Kind.MISTAKE),
        (f"{NO_STORE}\n=== Streaming Query ===\nIdentifier: x", NO_STORE, Kind.MISTAKE),
        (proxied("ValueError: boom"), "ValueError: boom", Kind.OTHER),
        (proxied("KeyError: 'k'"), "KeyError: 'k'", Kind.OTHER),
        (
            proxied("psycopg.OperationalError: connection failed: Connection refused"),
            "OperationalError: connection failed: Connection refused",
            Kind.PASSING,
        ),
        (
            proxied("ConnectionRefusedError: [Errno 111] Connection refused"),
            "ConnectionRefusedError: [Errno 111] Connection refused",
            Kind.PASSING,
        ),
        (
            proxied("headrace.errors.UnavailableError: no broker leads"),
            "UnavailableError: no broker leads",
            Kind.PASSING,
        ),
        ("DeadlineError: no answer", "DeadlineError: no answer", Kind.PASSING),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==\n1/0",
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
            Kind.OTHER,
        ),
        ("no heartbeat for 30001 ms", "no heartbeat for 30001 ms", Kind.OTHER),
        ("", "", Kind.OTHER),
    ],
)  # fmt: skip
def test_the_sentence_and_its_kind(text: str, found: str, kind: Kind) -> None:
    assert sentence(text) == found
    assert kind_of(text) is kind
    assert readable(text).startswith(found)
    assert text in readable(text)


def failing(driver: Driver, id_: str, text: str) -> None:
    driver.application.on_error(m.ReportErrorRequest(id_, (2,), text), driver.now)
    driver.beat(id_, up(1), up(2, state=FAILED))


def come_back(driver: Driver, id_: str) -> None:
    for _ in range(1_000):
        if driver.beat(id_, up(1), ms=100).deploy_request:
            break
    driver.beat(id_, up(1), up(2))


def test_the_same_mistake_three_times_ends_the_application_with_sparks_sentence() -> None:
    driver = Driver()
    id_ = driver.run_both()
    for _ in range(2):
        failing(driver, id_, ANALYSIS)
        assert driver.application.phase is Phase.RUNNING
        come_back(driver, id_)
    failing(driver, id_, ANALYSIS)
    record = driver.journal.applications["shop"]
    assert record.state == "FAILED"
    assert record.reason == f"operator revenue failed 3 times with the same mistake: {UNRESOLVED}"


def test_a_mistake_at_deployment_ends_it_too() -> None:
    driver = Driver()
    driver.start()
    for number in range(1, 4):
        id_ = f"shop.1.{number}"
        driver.beat(id_)
        error = m.ReportErrorRequest(id_, (1, 2), f"ConfigError: revenue: {UNRESOLVED}")
        driver.application.on_error(error, driver.now)
        driver.exit(id_, 1)
        driver.tick(60_000)
    assert driver.application.phase is Phase.FAILED
    assert UNRESOLVED in driver.journal.applications["shop"].reason


def test_another_error_has_ten_attempts_unless_it_says_otherwise() -> None:
    driver = Driver()
    id_ = driver.run_both()
    for number in range(10):
        failing(driver, id_, proxied(f"ValueError: {number}"))
        come_back(driver, id_)
    failing(driver, id_, proxied("ValueError: boom"))
    reason = driver.journal.applications["shop"].reason
    assert reason == "operator revenue failed 11 times without progress: ValueError: boom"
    endless = Driver(attempts=-1)
    id_ = endless.run_both()
    for _ in range(30):
        fail_once(endless, id_)
    assert endless.application.phase is Phase.RUNNING


def test_what_passes_by_itself_is_waited_for_unless_the_attempts_were_stated() -> None:
    away = proxied("headrace.errors.UnavailableError: no broker leads")
    driver = Driver()
    id_ = driver.run_both()
    for _ in range(40):
        failing(driver, id_, away)
        come_back(driver, id_)
    assert driver.application.phase is Phase.RUNNING
    stated = Driver(attempts=1)
    id_ = stated.run_both()
    failing(stated, id_, away)
    come_back(stated, id_)
    failing(stated, id_, away)
    assert stated.application.phase is Phase.FAILED


def test_a_neighbours_progress_ends_what_the_container_suffered_and_nothing_else() -> None:
    one, two = Operator(PHYSICAL), Operator(PHYSICAL)
    for each in (one, two):
        each.on_failure("", lost=True)
    one.on_failure(ANALYSIS)
    two.on_progress(own=True)
    one.on_progress(own=False)
    assert (one.failures, one.mistakes, two.failures) == (1, 1, 0)
    one.on_progress(own=True)
    assert (one.failures, one.mistakes, one.mistake) == (0, 0, "")


def test_what_is_fused_above_a_query_that_makes_progress_is_well_again() -> None:
    """It has no checkpoint of its own, and must not collect failures for ever."""
    driver = Driver()
    id_ = driver.run_both()
    for number in range(30):
        driver.beat(id_, up(1, state=FAILED), up(2, state=FAILED))
        for _ in range(100):
            if driver.beat(id_, ms=100).deploy_request:
                break
        driver.beat(id_, up(1), up(2, window(number + 1)))
    assert driver.application.phase is Phase.RUNNING
    assert [each.failures for each in driver.application.operators.values()] == [0, 0]
