"""What the controller costs a pipeline: rows per second of a fused pipeline in a container that it
supervises, against the same query that a script starts by hand, on the same topic.

Both run in processes of their own, by turns, under the same settings of Spark, and read the topic
in the same batches. What counts is the time from the end of the eighth batch, until which the JVM
compiles its code, to the end of the last, with all that happens between batches. The container
sends its heartbeats over the real umbilical, three times as often as by default.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

MESSAGES = 4_800_000
BATCH_MESSAGES = 200_000
WARM_BATCHES = 8
ROUNDS = 2
MASTER = "local[2]"
CONTAINER_SECONDS = 240.0

PIPELINE = """
import pyspark.sql.functions as F
from headrace import Application

app = Application("overhead")
app.topic("numbers", "bench/numbers", schema="n bigint, price double", messages_max={batch})

@app.operator
def cheap(numbers):
    return numbers.where("price < 90")

@app.operator(to="bench/supervised{round}")
def total(cheap):
    return cheap.select("n", (F.col("n") * F.col("price")).alias("total"))
"""

BY_HAND = """
import json
from datetime import datetime
import pyspark.sql.functions as F
from headrace.spark.session import session

spark = session("by-hand", master="{master}")
numbers = (
    spark.readStream.format("headrace")
    .option("address", "{address}").option("topic", "bench/numbers")
    .option("payloadFormat", "json").option("maxMessagesPerTrigger", {batch})
    .option("startingOffsets", "earliest")
    .schema("n bigint, price double").load()
)
rows = numbers.where("price < 90").select("n", (F.col("n") * F.col("price")).alias("total"))
query = (
    rows.writeStream.format("headrace")
    .option("address", "{address}").option("topic", "bench/by-hand{round}")
    .option("checkpointLocation", "{folder}").trigger(availableNow=True).start()
)
query.awaitTermination()
for one in query.recentProgress:
    began_ms = 1000 * datetime.fromisoformat(one["timestamp"]).timestamp()
    print(json.dumps([one["numInputRows"], began_ms + one["batchDuration"]]))
"""


def _fill(address: str) -> None:
    from pyspark.sql import functions as F

    from headrace.spark.options import parse_sink
    from headrace.spark.server import connect
    from headrace.spark.session.session import session

    spark = session("fill", master=MASTER)
    for topic in ["numbers", *(f"{kind}{n}" for kind in _KINDS for n in range(ROUNDS))]:
        target = parse_sink({"address": address, "topic": f"bench/{topic}"}).target
        connect(target).create_topic(target, partitions=2)
    rows = spark.range(0, MESSAGES, numPartitions=2).select(
        F.col("id").alias("n"), (F.col("id") % 100).cast("double").alias("price")
    )
    rows.write.format("headrace").mode("append").options(
        address=address, topic="bench/numbers"
    ).save()
    spark.stop()


_KINDS = ("supervised", "by-hand")


def _by_hand(address: str, folder: Path, number: int) -> float:
    script = BY_HAND.format(
        master=MASTER, address=address, batch=BATCH_MESSAGES, round=number, folder=folder
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    batches = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    return _rate(batches)


def _supervised(address: str, folder: Path, number: int) -> float:
    from headrace.pipeline.plan.loading import load_application
    from headrace.wire.umbilical import messages as m
    from tests.spark.scripted_controller import ScriptedController, deploy_infos

    folder.mkdir()
    name = f"overhead{number}"
    (folder / f"{name}.py").write_text(PIPELINE.format(batch=BATCH_MESSAGES, round=number))
    controller = ScriptedController(folder / "application")
    controller.deploy = deploy_infos(load_application(str(folder), f"{name}.py"))
    controller.start()
    environment = {
        **os.environ,
        "HEADRACE_CONTAINER_ID": "container-1",
        "HEADRACE_APPLICATION_PATH": str(controller.path),
        "HEADRACE_PACKAGE": str(folder),
        "HEADRACE_ENTRY": f"{name}.py",
        "HEADRACE_BROKER": address,
        "HEADRACE_SPARK_MASTER": MASTER,
        "HEADRACE_AVAILABLE_NOW": "1",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.pipeline.container.container"],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + CONTAINER_SECONDS
        while sum(rows for rows, _ in _reported(controller)) < MESSAGES:
            assert process.poll() is None, (folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the container did not finish"
            time.sleep(0.2)
        controller.shutdown = m.ShutdownType.ABORT
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        controller.stop()
    return _rate(_reported(controller))


def _reported(controller: Any) -> list[tuple[int, float]]:
    """(rows, when it ended in ms) of each batch, as the heartbeats tell of the topic's operator."""
    return [
        (int(str(one.metrics["rows"])), one.output_ports[0].end_window_timestamp)
        for one in controller.stats(1)
        if "rows" in one.metrics
    ]


def _rate(batches: Sequence[tuple[int, float]]) -> float:
    """Rows per second of the batches after the first ones; both sides read all, in equal steps."""
    assert [rows for rows, _ in batches if rows] == MESSAGES // BATCH_MESSAGES * [BATCH_MESSAGES], (
        f"it did not read the topic in batches of {BATCH_MESSAGES}: {batches}"
    )
    ends = [ended_ms for rows, ended_ms in batches if rows][WARM_BATCHES - 1 :]
    return 1000.0 * BATCH_MESSAGES * (len(ends) - 1) / (ends[-1] - ends[0])


def _in_turn(number: int) -> Sequence[tuple[str, Callable[[str, Path, int], float]]]:
    """Whoever comes first finds a colder machine."""
    kinds = list(zip(_KINDS, (_supervised, _by_hand), strict=True))
    return kinds if number % 2 == 0 else kinds[::-1]


def run() -> list[dict[str, Any]]:
    from tests.spark.headrace_server import HeadraceServer

    os.environ["HEADRACE_USERNAME"], os.environ["HEADRACE_PASSWORD"] = "iggy", "secret"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = HeadraceServer(folder / "data")
        server.start()
        try:
            _fill(server.address)
            rates: dict[str, list[float]] = {kind: [] for kind in _KINDS}
            for number in range(ROUNDS):
                for kind, measure in _in_turn(number):
                    place = folder / f"{kind}{number}"
                    rates[kind].append(measure(server.address, place, number))
        finally:
            server.stop()
    value, limit = (max(rates[kind]) for kind in _KINDS)
    return [
        {
            "name": "a fused pipeline, limit: its query by hand",
            "value": value,
            "unit": "rows/s",
            "limit": limit,
            "ratio": value / limit,
        }
    ]


if __name__ == "__main__":
    for result in run():
        print(result)
