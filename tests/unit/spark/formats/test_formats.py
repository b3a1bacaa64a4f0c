"""What holds for every payload format: options, bad payloads, columns of the message itself."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.client.arrow import to_record_batch
from headrace.errors import ConfigError, InvalidArgumentError, NotFoundError
from headrace.spark.formats.decoding import Bad
from headrace.spark.formats.options import FormatOptions
from headrace.spark.formats.typed import DeadLetters, TypedRows, dead_letters
from headrace.spark.options import dead_letter_target, parse_sink, parse_source
from headrace.wire.iggy.columns import MessageBuffer
from tests.unit.spark.formats_area import BASE_OFFSET, area_of, decode

N = pa.schema([("n", pa.int32())])
TOPIC = {"topic": "shop/orders"}


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ({"payloadFormat": "avro"}, "avroSchema"),
        ({"payloadFormat": "protobuf", "protobufDescriptor": "/nowhere"}, "nowhere"),
        ({"payloadFormat": "json", "avroSchema": "{}"}, "is for payloadFormat=avro"),
        ({"deadLetterTopic": "bad"}, "no deadLetterTopic is needed"),
        ({"payloadFormat": "csv", "csvDelimiter": '"'}, "csvDelimiter"),
        ({"payloadFormat": "csv", "csvDelimiter": "::"}, "csvDelimiter"),
        ({"payloadFormat": "avro", "avroSchema": "file:/nowhere"}, "cannot read avroSchema"),
    ],
)
def test_options_that_do_not_fit_are_refused(bad: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_source({**TOPIC, **bad}, streaming=True)


def test_files_are_read_where_the_options_are(tmp_path: Path) -> None:
    (tmp_path / "schema").write_text('"long"')
    given = {"payloadFormat": "avro", "avroSchema": f"file:{tmp_path / 'schema'}"}
    assert parse_source({**TOPIC, **given}, streaming=True).format.avro_schema == '"long"'
    given = {"valueFormat": "avro", "avroSchema": f"file:{tmp_path / 'schema'}"}
    assert parse_sink({**TOPIC, **given}).avro_schema == '"long"'
    with pytest.raises(ConfigError, match="valueFormat=avro"):
        parse_sink({**TOPIC, "avroSchema": '"long"'})
    with pytest.raises(ConfigError, match="valueFormat is one of"):
        parse_sink({**TOPIC, "valueFormat": "csv"})


def test_without_a_place_for_it_a_bad_payload_fails_with_its_place_and_reason() -> None:
    good = b'{"n": 1}'
    assert decode("json", [good], N) == [{"n": 1}]
    with pytest.raises(InvalidArgumentError) as caught:
        decode("json", [good, good, b'{"n": "x"}', b"oops"], N)
    text = str(caught.value)
    assert f"offset {BASE_OFFSET + 2} of partition 3 of shop/orders" in text
    assert "Expected `int | null`, got `str`" in text
    assert "1 more" in text
    assert "_corrupt" in text


def test_bad_payloads_go_where_they_are_sent() -> None:
    sent: list[list[Bad]] = []
    typed = TypedRows(
        "json",
        FormatOptions(message_columns=("offset",)),
        pa.schema([("offset", pa.int64()), ("n", pa.int32())]),
        stream="shop",
        topic="orders",
        partition=3,
        dead_letters=lambda area, starts, bad: sent.append(bad),
    )
    (batch,) = typed.read(*area_of([b'{"n": 1}', b"oops", b'{"n": 3}']))
    rows = batch.to_pylist()
    assert rows == [{"offset": 100, "n": 1}, {"offset": 102, "n": 3}]
    ((bad,),) = sent
    assert bad.row == 1
    assert "malformed" in bad.reason
    assert [each.num_rows for each in typed.read(*area_of([b"{}"]))] == [1]
    assert [each.num_rows for each in typed.read(*area_of([b"", b""]))] == [0]
    assert len(sent) == 2


def test_the_columns_named_by_an_option_are_the_messages_own() -> None:
    schema = pa.schema(
        [
            ("partition", pa.int32()),
            ("n", pa.int32()),
            ("offset", pa.int64()),
            ("_corrupt", pa.binary()),
        ]
    )
    payloads = [b'{"n": 1, "offset": 5}', b"\xff"]
    found = decode("json", payloads, schema, message_columns=("offset", "partition"))
    assert found == [
        {"partition": 3, "n": 1, "offset": 100, "_corrupt": None},
        {"partition": 3, "n": None, "offset": 101, "_corrupt": b"\xff"},
    ]
    assert decode("json", payloads[:1], schema)[0]["offset"] == 5


@pytest.mark.parametrize(
    ("schema", "options", "text"),
    [
        (N, {"message_columns": ("offset",)}, "no such column"),
        (pa.schema([("offset", pa.int32())]), {"message_columns": ("offset",)}, "must be int64"),
        (pa.schema([("_corrupt", pa.int32())]), {}, "string or binary"),
        (pa.schema([("_corrupt", pa.string())]), {"dead_letter_topic": "x"}, "choose one"),
        (pa.schema([("_rest", pa.int32())]), {}, "must be string"),
        (pa.schema([pa.field("n", pa.int32(), nullable=False)]), {}, "nullable"),
        (pa.schema([("n", pa.int32()), ("n", pa.int32())]), {}, "two columns"),
    ],
)
def test_schemas_that_cannot_be_read_are_refused(
    schema: pa.Schema, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        decode("json", [b""], schema, **options)
    if "_rest" not in schema.names:
        return
    with pytest.raises(ConfigError, match="payloadFormat=json"):
        decode("csv", [b""], schema, **options)


# --- dead letters ---------------------------------------------------------------------------------


def test_a_dead_letter_is_the_message_with_its_place_and_the_reason() -> None:
    area = area_of(
        [b"a", b"b", b"c"],
        keys=[None, b"key", None],
        headers=[None, [("mine", b"1"), ("headrace.offset", b"7")], None],
    )
    found = dead_letters(
        *area,
        [Bad(1, "why"), Bad(2, "ü")],
        stream="shop",
        topic="orders",
        partition=3,
    )
    batch = to_record_batch(
        *found, stream="", topic="", partition=0, names=("key", "headers", "payload")
    )
    first, second = batch.to_pylist()
    assert (first["key"], first["payload"]) == (b"key", b"b")
    assert dict(first["headers"]) == {
        "mine": b"1",
        "headrace.reason": b"why",
        "headrace.stream": b"shop",
        "headrace.topic": b"orders",
        "headrace.partition": b"3",
        "headrace.offset": b"101",
    }
    assert (second["key"], second["payload"]) == (None, b"c")
    assert dict(second["headers"])["headrace.reason"] == "ü".encode()


def test_dead_letter_topics() -> None:
    source = parse_sink(TOPIC).target
    assert dead_letter_target(source, "bad").topic == "bad"
    assert dead_letter_target(source, "bad").stream == "shop"
    assert dead_letter_target(source, "other/bad").stream == "other"
    for wrong in ("", "a/b/c", "/x", "x/", "orders", "shop/orders"):
        with pytest.raises(ConfigError):
            dead_letter_target(source, wrong)


class FakeServer:
    """Knows no topic until one is made."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.sent: list[MessageBuffer] = []

    def create_topic(self, target: Any) -> None:
        self.made.append(target.topic)

    def send_soon(self, target: Any, partition: int | None, *area: Any) -> Future[int]:
        future: Future[int] = Future()
        if target.topic in self.made:
            self.sent.append(area)
            future.set_result(1)
        else:
            future.set_exception(NotFoundError("no topic"))
        return future


def test_the_dead_letter_topic_is_made_when_it_is_first_needed() -> None:
    server = FakeServer()
    send = DeadLetters(server, parse_sink(TOPIC).target, "bad", 3)  # type: ignore[arg-type]  # a fake
    send(*area_of([b"x", b"y"]), [Bad(0, "why")])
    send(*area_of([b"x", b"y"]), [Bad(1, "why")])
    assert server.made == ["bad"]
    payloads = [
        to_record_batch(*area, stream="", topic="", partition=0, names=("payload",)).to_pylist()
        for area in server.sent
    ]
    assert payloads == [[{"payload": b"x"}], [{"payload": b"y"}]]


def test_reasons_are_short_and_on_one_line() -> None:
    sent: list[Bad] = []
    typed = TypedRows(
        "json",
        FormatOptions(),
        N,
        stream="s",
        topic="t",
        partition=0,
        dead_letters=lambda area, starts, bad: sent.extend(bad),
    )
    list(typed.read(*area_of([json.dumps({"n": 10**300}).encode(), b'{"n":\n}'])))
    assert len(sent) == 2
    assert all(0 < len(each.reason) <= 200 and "\n" not in each.reason for each in sent)
