"""Spans from a producer's request down to the disk, in memory and over OTLP."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.errors import HeadraceError
from headrace.ids import WindowId
from headrace.observability import tracing
from headrace.pipeline import traces
from headrace.pipeline.container.heartbeat import read_progress
from headrace.pipeline.container.window_log import BatchWindow
from headrace.wire.iggy.messages.messages import Message
from headrace.wire.iggy.primitives import Partitioning, Strategy
from headrace.wire.iggy.user_headers import UserHeader, encode_headers
from headrace.wire.umbilical.windows import NO_WINDOW
from tests.integration.broker_stack import Stack
from tests.unit.web.stage import running

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.install(provider)
    yield exporter
    tracing.stop()


def named(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(span.name, []).append(span)
    return found


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {str(k).removeprefix("headrace."): v for k, v in (span.attributes or {}).items()}


async def test_a_send_is_one_trace_from_the_producer_to_the_disk(
    tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    stack = await Stack(str(tmp_path)).start()
    try:
        client = await stack.connect()
        await client.create_stream("s")
        await client.create_topic("s", "t")
        spans.clear()
        headers = encode_headers([UserHeader.of("traceparent", f"00-{TRACE}-{PARENT}-01")])
        where = Partitioning.to_partition(0)
        messages = [Message(b"one", headers), Message(b"two")]
        await client.send("s", "t", messages, partitioning=where)
        polled = await client.poll("s", "t", partition=0, strategy=Strategy.first())
        with pytest.raises(HeadraceError):
            await client.send("s", "none", [Message(b"x")], partitioning=where)
        stream_id = stack.broker.broker.open_logs()[0].stream_id
        await client.close()
    finally:
        await stack.stop()
    assert polled.messages()[0].headers == headers, "who polls finds the context too"
    found = named(spans)
    send, refused = found["headrace.broker.send"]
    (append,) = found["headrace.log.append"]
    ours = [s for s in found["headrace.node.append"] if attributes(s)["stream_id"] == stream_id]
    for span in (send, append, *ours):
        assert format(span.context.trace_id, "032x") == TRACE, span.name
    assert send.parent is not None
    assert append.parent is not None
    assert ours[0].parent is not None
    assert format(send.parent.span_id, "016x") == PARENT
    assert append.parent.span_id == send.context.span_id
    assert ours[0].parent.span_id == append.context.span_id
    told = attributes(send)
    assert (told["topic"], told["messages"], told["dialect"]) == ("s/t", 2, "B2")
    told = attributes(append)
    assert (told["stream_id"], told["offset"], told["messages"]) == (stream_id, 0, 2)
    syncs = [attributes(span)["stream_id"] for span in found["headrace.log.sync"]]
    assert any(stream_id in ids for ids in syncs)
    (poll,) = found["headrace.broker.poll"]
    assert attributes(poll)["messages"] == 2
    assert poll.kind.name == "CONSUMER"
    assert refused.status.description
    assert "none" in refused.status.description
    assert send.end_time is not None
    assert append.end_time is not None
    assert send.end_time >= append.end_time


def test_batches_and_windows_have_the_times_they_took(spans: InMemorySpanExporter) -> None:
    progress = {
        "timestamp": "2023-11-14T22:13:21.000Z",
        "batchId": 7,
        "runId": "run",
        "batchDuration": 250,
        "numInputRows": 10,
        "sources": [
            {
                "startOffset": {"v": 1, "p": {"4/0": [0, 100]}},
                "endOffset": {"v": 1, "p": {"4/0": [0, 110]}},
                "latestOffset": {"v": 1, "p": {"4/0": [0, 115]}},
            }
        ],
    }
    window = BatchWindow(WindowId(1_700_000_000 << 32 | 2), NO_WINDOW, replay=False)
    traces.on_batch("revenue", read_progress(progress, window, 3), progress)
    driver = running()
    traces.on_committed(driver.application, NO_WINDOW, driver.now)
    traces.on_committed(driver.application, driver.application.checkpoints.committed, driver.now)
    batch, committed = spans.get_finished_spans()
    told = attributes(batch)
    assert (told["operator"], told["batch"], told["rows_in"], told["lag"]) == ("revenue", 7, 10, 5)
    assert told["offsets"] == ("4/0:100-110",)
    assert (batch.start_time, batch.end_time) == (
        1_700_000_001_000_000_000,
        1_700_000_001_250_000_000,
    )
    assert committed.name == "headrace.pipeline.window"
    assert attributes(committed)["application"] == "shop"
    assert committed.end_time == driver.now * 1_000_000


class Collector(BaseHTTPRequestHandler):
    taken: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.taken.append((self.path, body))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    taken: list[tuple[str, bytes]] = []
    server = HTTPServer(("127.0.0.1", 0), type("Own", (Collector,), {"taken": taken}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", taken
    server.shutdown()
    thread.join()
    server.server_close()


def test_spans_reach_a_collector_over_http(
    collector: tuple[str, list[tuple[str, bytes]]],
) -> None:
    endpoint, taken = collector
    tracing.start(f"{endpoint}/", service="headrace-broker", instance="here:1")
    try:
        span = tracing.begin("headrace.log.append", stream_id=7, absent=None)
        trace, _ = tracing.ids()
        assert tracing.traceparent().split("-")[1] == trace
        span.end(error="disk full")
    finally:
        tracing.stop()
    assert not tracing.active
    assert tracing.ids() == ("", "")
    assert tracing.traceparent() == ""
    ((path, body),) = taken
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(body)
    (resource,) = request.resource_spans
    about = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert about["service.name"] == "headrace-broker"
    assert about["service.instance.id"] == "here:1"
    (sent,) = resource.scope_spans[0].spans
    assert sent.name == "headrace.log.append"
    assert sent.trace_id.hex() == trace
    assert [(a.key, a.value.int_value) for a in sent.attributes] == [("headrace.stream_id", 7)]
    assert sent.status.message == "disk full"
