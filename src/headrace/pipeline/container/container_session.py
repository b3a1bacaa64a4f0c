"""The Spark session of a container, and the application whose queries run in it.

Both are made when they are first asked for, and once: a container that is only told what it is
given to run starts no Java. The container owns the session and stops it at its end.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol

from headrace.pipeline.container.heartbeat import stack_traces
from headrace.pipeline.declare.application import Application
from headrace.pipeline.plan.loading import load_application

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.session.queries import ProgressRings


class WorkloadSettings(Protocol):
    """What of the container's settings matters here."""

    @property
    def application_path(self) -> str: ...
    @property
    def package(self) -> str: ...
    @property
    def entry(self) -> str: ...
    @property
    def broker(self) -> str: ...
    @property
    def master(self) -> str: ...
    @property
    def available_now(self) -> bool: ...
    @property
    def spark_conf(self) -> Any: ...


class ContainerSession:
    """Starts Spark and loads the application, each when it is first needed."""

    def __init__(self, settings: WorkloadSettings) -> None:
        self._settings = settings
        self._app: Application | None = None
        self._spark: SparkSession | None = None
        self._rings: ProgressRings | None = None

    @property
    def loaded(self) -> Application | None:
        """The application, if anybody asked for it before."""
        return self._app

    @property
    def running(self) -> SparkSession | None:
        """The session, if anybody asked for it before."""
        return self._spark

    @property
    def rings(self) -> ProgressRings:
        """What Spark tells of the progress of queries in the session."""
        assert self._rings is not None
        return self._rings

    def application(self) -> Application:
        if self._app is None:
            self._app = load_application(self._settings.package, self._settings.entry)
        return self._app

    def spark(self) -> SparkSession:
        if self._spark is None:
            from headrace.spark.session.session import session

            app = self.application()
            conf = {
                **code_for_executors(self._settings.master),
                **self._settings.spark_conf,
                **app.spark_conf,
            }
            return self.use(session(app.name, master=self._settings.master, conf=conf))
        return self._spark

    def use(self, spark: SparkSession) -> SparkSession:
        """Run queries in this session from now on."""
        from headrace.spark.session.queries import ProgressRings

        self._spark, self._rings = spark, ProgressRings()
        spark.streams.addListener(self._rings)
        return spark

    def is_broken(self) -> bool:
        if self._spark is None:
            return False
        from headrace.spark.session.queries import is_stopped

        return is_stopped(self._spark)

    def memory(self) -> tuple[int, int, int]:
        if self._spark is None:
            return 0, 0, 0
        from headrace.spark.session.queries import memory

        return memory(self._spark)

    def stack_trace(self) -> str:
        return stack_traces(self._spark)

    def close(self) -> None:
        if self._spark is not None:
            self._spark.stop()
            self._spark = None


def code_for_executors(master: str) -> dict[str, str]:
    """Settings that give a cluster's executors the path of the driver, and so the package and what
    it requires: both are in the application's folder, which all nodes see. A local session's
    workers inherit it."""
    path = os.environ.get("PYTHONPATH", "")
    if master.startswith("local") or not path:
        return {}
    return {"spark.executorEnv.PYTHONPATH": path}
