"""Runs an ordinary PySpark script in a thread of this process, and knows the queries it starts.

The script is not changed: its session gets the settings it does not set itself, every query a
name, and, unless it states one, a checkpoint under ours, so that a restart goes on where it was.
Once the script's text is through, its queries go on until they end or are stopped.
"""

from __future__ import annotations

import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.spark.session.queries import ProgressRings, RunningQuery
from headrace.spark.session.session import prepare_environment, settings_for

CHECKPOINTS = "spark.sql.streaming.checkpointLocation"
_NAME = "_headrace_query_name"


class ScriptRun:
    """One run of a script. Methods may be called from any thread."""

    def __init__(
        self,
        path: str,
        *,
        checkpoints: str,
        available_now: bool,
        master: str,
        conf: Mapping[str, str],
        address: str,
        arguments: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._checkpoints = checkpoints
        self._available_now = available_now
        self._settings = {"spark.master": master, **settings_for(conf, master)}
        self._address = address
        self._arguments = arguments
        self._lock = threading.Lock()
        self._queries: dict[str, RunningQuery] = {}
        self._order: list[str] = []
        self._unnamed = 0
        self._thread: threading.Thread | None = None
        self.rings = ProgressRings()
        self.session: SparkSession | None = None
        self.over = False
        self.error = ""

    def start(self) -> None:
        prepare_environment(self._settings["spark.master"])
        os.environ["HEADRACE_ADDRESS"] = self._address  # Spark's workers inherit it
        self._thread = threading.Thread(target=self._run, name="script", daemon=True)
        self._thread.start()

    def queries(self) -> list[tuple[str, RunningQuery]]:
        """By name, in the order of their first start."""
        with self._lock:
            return [(name, self._queries[name]) for name in self._order]

    def stop(self) -> None:
        """Stop the queries; whoever waits for one in the script goes on and ends."""
        for _, query in self.queries():
            query.stop()

    def wait(self, seconds: float) -> None:
        """Until the script's text is through."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            with self._patched():
                sys.argv = [self._path, *self._arguments]
                runpy.run_path(self._path, run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0):
                self.error = f"the script ended with {error.code}"
        except BaseException as error:  # whatever the script raises is its author's to read
            traceback.print_exc()
            frames = [
                f for f in traceback.extract_tb(error.__traceback__) if f.filename == self._path
            ]
            place = f" ({Path(self._path).name}:{frames[-1].lineno})" if frames else ""
            first = str(error).strip().split("\n", 1)[0]
            self.error = f"{type(error).__name__}: {first}{place}"
        finally:
            self.over = True

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Spark's entry points, with what a supervised script gets, for as long as it runs."""
        writer: Any = DataStreamWriter
        builder: Any = SparkSession.Builder
        name, start, to_table = writer.queryName, writer.start, writer.toTable
        get_or_create, arguments = builder.getOrCreate, sys.argv

        def query_name(self: Any, text: str) -> Any:
            setattr(self, _NAME, text)
            return name(self, text)

        def get(self: Any) -> SparkSession:
            for key, value in run._settings.items():
                if key not in self._options:
                    self.config(key, value)
            return run._adopt(get_or_create(self))

        def started(original: Callable[..., StreamingQuery]) -> Callable[..., StreamingQuery]:
            def call(self: Any, *args: Any, **options: Any) -> StreamingQuery:
                stated = options.get("queryName") or getattr(self, _NAME, None)
                label = run._label(stated)
                if stated is None:
                    name(self, label)
                if run._available_now:
                    self.trigger(availableNow=True)
                query = original(self, *args, **options)
                run._add(label, query)
                return query

            return call

        run = self
        writer.queryName, builder.getOrCreate = query_name, get
        writer.start, writer.toTable = started(start), started(to_table)
        try:
            yield
        finally:
            writer.queryName, writer.start, writer.toTable = name, start, to_table
            builder.getOrCreate, sys.argv = get_or_create, arguments

    def _adopt(self, session: SparkSession) -> SparkSession:
        # A session that was there before is not the active one of this thread's twin in the JVM,
        # and Spark finds a Python sink through the active one.
        kind: Any = SparkSession._get_j_spark_session_class(session._jvm)
        kind.setActiveSession(session._jsparkSession)
        if self.session is not session:
            session.conf.set(CHECKPOINTS, self._checkpoints)
            session.streams.addListener(self.rings)
            self.session = session
        return session

    def _label(self, stated: str | None) -> str:
        if stated is not None:
            return stated
        with self._lock:
            self._unnamed += 1
            return f"query_{self._unnamed}"

    def _add(self, name: str, query: StreamingQuery) -> None:
        with self._lock:
            if name not in self._queries:
                self._order.append(name)
            self._queries[name] = RunningQuery(query, self.rings)
