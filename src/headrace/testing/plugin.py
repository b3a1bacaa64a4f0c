"""Fixtures for pytest, known to it wherever Headrace is installed.

* `headrace_broker`: one broker for the whole run
* `headrace_stream`: the name of a stream of the test's own on it, deleted afterwards
* `headrace_spark`: one Spark session for the whole run, for `app.test`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.testing.broker import LocalBroker


@pytest.fixture(scope="session")
def headrace_broker() -> Iterator[LocalBroker]:
    from headrace.testing.broker import LocalBroker

    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def headrace_stream(headrace_broker: LocalBroker) -> Iterator[str]:
    name = f"test-{uuid4().hex[:12]}"
    with headrace_broker.client() as client:
        client.run(lambda c: c.create_stream(name))
        yield name
        client.run(lambda c: c.delete_stream(name))


@pytest.fixture(scope="session")
def headrace_spark() -> Iterator[SparkSession]:
    from headrace.spark.session.session import session

    started = session("headrace tests", master="local[2]")
    yield started
    started.stop()
