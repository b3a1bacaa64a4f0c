"""One Spark session for the whole run, and servers to read from and write to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headrace.spark.session.session import session
from tests.spark.headrace_server import HeadraceServer
from tests.spark.plain_server import PlainServer

AnyServer = HeadraceServer | PlainServer


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # The workers are started by the JVM and inherit what stands here when it starts.
    os.environ["HEADRACE_USERNAME"] = "iggy"
    os.environ["HEADRACE_PASSWORD"] = "secret"
    # Two cores, and a second attempt for tasks that fail.
    started = session("tests", master="local[2,2]", conf={"spark.driver.memory": "1g"})
    yield started
    started.stop()


@pytest.fixture(scope="session")
def plain() -> Iterator[PlainServer]:
    server = PlainServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def headrace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceServer]:
    server = HeadraceServer(tmp_path_factory.mktemp("headrace") / "data")
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def trimming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceServer]:
    """Its segments are small and its retention is quick."""
    server = HeadraceServer(
        tmp_path_factory.mktemp("trimming") / "data",
        broker={"retention_interval_ms": 100},
        storage={"segment_bytes_max": 64 << 10},
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def unextended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceServer]:
    """Our own server without the commands that Iggy does not have."""
    server = HeadraceServer(
        tmp_path_factory.mktemp("unextended") / "data", broker={"extensions": False}
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["headrace", "plain"])
def server(request: pytest.FixtureRequest) -> AnyServer:
    found: AnyServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint")
