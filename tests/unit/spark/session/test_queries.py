"""When a container asks to be replaced: Spark has stopped under its queries."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.spark.session.queries import is_stopped


class Session:
    """A session, as far as it is asked whether it lives."""

    def __init__(self, context: Any) -> None:
        self.sparkContext = self
        self._jsc = context


class Context:
    def __init__(self, *, stopped: bool) -> None:
        self._stopped = stopped

    def sc(self) -> Context:
        return self

    def isStopped(self) -> bool:
        return self._stopped


@pytest.mark.parametrize(
    ("context", "stopped"),
    [(None, True), (Context(stopped=True), True), (Context(stopped=False), False)],
    ids=["by Python", "in the JVM", "lives"],
)
def test_a_stopped_session_is_noticed(context: Context | None, stopped: bool) -> None:
    session: Any = Session(context)
    assert is_stopped(session) is stopped
