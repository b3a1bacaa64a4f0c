"""What a broker counts of its requests is bounded and right."""

from __future__ import annotations

from headrace.broker.traffic import UNKNOWN, Traffic, command_name, dialect_counts
from headrace.observability.exposition import format_families
from headrace.web.metrics.broker import of_traffic
from headrace.wire.iggy import commands as c
from headrace.wire.iggy.dialects import Dialect


def test_requests_are_counted_by_command_dialect_and_refusal() -> None:
    traffic = Traffic()
    send = c.SEND_MESSAGES.code
    traffic.on_answer(send, Dialect.B2, 0.002, 100, [b"ab", b"c"])
    traffic.on_answer(send, Dialect.C, 0.004, 50, (), 2010)
    traffic.on_answer(send, Dialect.C, 0.004, 50, (), 2010)
    assert (traffic.bytes_in, traffic.bytes_out) == (200, 3)
    text = format_families(of_traffic(traffic))
    for line in (
        'headrace_broker_requests_total{command="send_messages",dialect="B2"} 1.0',
        'headrace_broker_requests_total{command="send_messages",dialect="C"} 2.0',
        'headrace_broker_request_errors_total{code="2010",command="send_messages"} 2.0',
        'headrace_broker_request_duration_seconds_count{command="send_messages"} 3.0',
        "headrace_broker_received_bytes_total 200.0",
        "headrace_broker_sent_bytes_total 3.0",
    ):
        assert line in text.splitlines(), line


def test_codes_that_clients_make_up_are_one() -> None:
    traffic = Traffic()
    for code in range(100_000, 100_050):
        traffic.on_answer(code, Dialect.A, 0.0, 0, (), 3)
    assert list(traffic.commands) == [UNKNOWN]
    assert dialect_counts(traffic.commands[UNKNOWN]) == [("A", 50)]
    assert command_name(UNKNOWN) == "unknown"


def test_refusals_that_nobody_lists_stop_somewhere() -> None:
    traffic = Traffic()
    for status in range(1, 1_000):
        traffic.on_answer(c.PING.code, Dialect.A, 0.0, 0, (), status)
    assert len(traffic.commands[c.PING.code].errors) == 200


def test_totals_are_sums_over_commands_and_dialects() -> None:
    traffic = Traffic()
    traffic.on_answer(c.SEND_MESSAGES.code, Dialect.B2, 0.002, 100, ())
    traffic.on_answer(c.SEND_MESSAGES.code, Dialect.C, 0.002, 100, (), 2010)
    traffic.on_poll_at_once(Dialect.A, 50, [b"ab"])
    traffic.sent_messages += 7
    totals = traffic.totals()
    assert (totals["requests"], totals["refusals"], totals["sent_messages"]) == (3, 1, 7)
