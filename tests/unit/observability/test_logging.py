import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.observability import tracing
from headrace.observability.logging import REQUEST_ID, Format, configure_logging, get_logger


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_name_the_module_and_carry_fields(output: io.StringIO) -> None:
    configure_logging(format="json", output=output)
    get_logger("headrace.storage.log").info("sealed", stream_id=3, end=10)
    line = json.loads(output.getvalue())
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "sealed",
        "level": "info",
        "logger": "headrace.storage.log",
        "stream_id": 3,
        "end": 10,
    }


def test_secrets_and_payloads_are_not_shown(output: io.StringIO) -> None:
    log = get_logger("headrace.broker")
    for format in ("json", "text"):
        configure_logging(format=format, output=output)
        log.warning(
            "login",
            user="ann",
            password="hunter2",
            accessToken="hunter2",
            node_credential=b"hunter2",
            payload=bytearray(b"hunter2"),
            body=memoryview(b"hunter2"),
            settings={"root": {"password": "hunter2"}, "pieces": [b"hunter2"]},
        )
    text = output.getvalue()
    assert "hunter2" not in text
    assert text.count("ann") == 2
    assert text.count("<7 bytes>") == 8


def test_exceptions_have_tracebacks_without_local_variables(output: io.StringIO) -> None:
    value = "-".join(["secret", "value"])

    def fail(value: str) -> None:
        raise ValueError("planned")

    for format in ("json", "text"):
        configure_logging(format=format, output=output)
        try:
            fail(value)
        except ValueError as error:
            get_logger("headrace.x").error("failed", exc_info=error)
    assert output.getvalue().count("ValueError: planned") == 2
    assert output.getvalue().count("in fail") == 2
    assert value not in output.getvalue()


def test_levels_filter_and_set_up_may_be_repeated(output: io.StringIO) -> None:
    configure_logging(level="debug", output=io.StringIO())
    configure_logging(format="json", level="warning", output=output)
    log = get_logger("headrace.x")
    log.info("hidden")
    log.warning("shown")
    assert [json.loads(line)["event"] for line in output.getvalue().splitlines()] == ["shown"]


def test_records_of_other_libraries_come_out_alike(output: io.StringIO) -> None:
    configure_logging(format="json", output=output)
    logging.getLogger("asyncio").error("took %.1f s", 1.5, extra={"port": 80})
    line = json.loads(output.getvalue())
    assert (line["event"], line["logger"], line["level"], line["port"]) == (
        "took 1.5 s",
        "asyncio",
        "error",
        80,
    )


def test_bound_fields_stay_with_their_logger(output: io.StringIO) -> None:
    configure_logging(format="json", output=output)

    async def main() -> None:
        get_logger("headrace.x").bind(connection=7).info("opened")

    asyncio.run(main())
    assert json.loads(output.getvalue())["connection"] == 7


def test_nothing_is_configured_before_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("headrace.x").info("quiet by default")
    assert capsys.readouterr() == ("", "")


def test_lines_name_request_span_and_role() -> None:
    output = io.StringIO()
    configure_logging(format="json", output=output, role="broker")
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    log = get_logger("x")
    token = REQUEST_ID.set((0xAB, 3))
    tracing.install(provider)
    try:
        span = tracing.begin("work")
        log.info("inside")
        span.end()
        REQUEST_ID.set(("10.0.0.1:7", 9))
        log.info("behind")
    finally:
        tracing.stop()
        REQUEST_ID.reset(token)
    log.info("outside")
    inside, behind, outside = (json.loads(line) for line in output.getvalue().splitlines())
    (made,) = exporter.get_finished_spans()
    assert inside["request"] == "000000ab-3"
    assert inside["trace"] == format(made.context.trace_id, "032x")
    assert inside["span"] == format(made.context.span_id, "016x")
    assert behind["request"] == "10.0.0.1:7-9"
    assert "trace" not in behind
    assert {line["role"] for line in (inside, behind, outside)} == {"broker"}
    assert not {"request", "trace", "span"} & set(outside)


FORGED = "2026-11-18T00:00:00.000000Z [info     ] audit [headrace.audit] by=iggy outcome=ok"
HOSTILE = (
    f"eve\n{FORGED}",
    f"eve\r\n{FORGED}",
    f"eve\r{FORGED}",
    f"eve\x1b[2K\x1b[1A{FORGED}",
    f"eve\x9b2K{FORGED}",
    f"eve\x85{FORGED}",
    f"eve\u2028{FORGED}",
    f"eve\u202e{FORGED[::-1]}",
    f"eve\x00\x07\x08{FORGED}",
    "eve\ud800",
    "eve\x1b]0;title\x07",
)


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
@pytest.mark.parametrize("format", ["text", "json"])
def test_nobody_forges_a_line(output: io.StringIO, format: Format, hostile: str) -> None:
    configure_logging(format=format, output=output)
    log = get_logger("headrace.audit")
    log.info("audit", by=hostile, outcome="refused")
    log.info(hostile)
    log.info("listed", names=[hostile], more={"name": hostile})
    logging.getLogger("uvicorn.error").warning("GET %s", hostile)
    written = output.getvalue()
    lines = written.splitlines()  # at every mark that anything takes for the end of a line
    assert len(lines) == 4
    assert not any(line.startswith(FORGED[:20]) for line in lines)
    assert all(each.isprintable() for each in written.replace("\n", ""))


def test_an_errors_text_is_no_line_of_its_own(output: io.StringIO) -> None:
    configure_logging(format="text", output=output)
    for hostile in HOSTILE[:-2]:
        try:
            raise ValueError(hostile)
        except ValueError:
            get_logger("headrace.broker").exception("request failed")
    lines = output.getvalue().split("\n")
    events = [line for line in lines if line and not line.startswith("    ")]
    assert len(events) == len(HOSTILE) - 2
    assert all("request failed" in line for line in events)
    assert all(each.isprintable() for each in output.getvalue().replace("\n", ""))
