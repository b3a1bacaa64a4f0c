"""Options: what is understood, what is refused, and that secrets never become values."""

import pytest

from headrace.client.url import TlsOptions
from headrace.errors import ConfigError
from headrace.spark.options import KAFKA_COLUMNS, Credentials, parse_sink, parse_source
from headrace.spark.source.positions import AtOffsets
from headrace.wire.iggy.columns import COLUMNS

TOPIC = {"stream": "shop", "topic": "orders"}


def test_defaults() -> None:
    options = parse_source(TOPIC, streaming=True)
    assert options.target.address == "127.0.0.1:8090"
    assert (options.target.stream, options.target.topic) == ("shop", "orders")
    assert options.starting == "latest"
    assert options.columns == COLUMNS
    assert options.read_from == "auto"
    assert options.local_reads
    assert not parse_source({**TOPIC, "localReads": "false"}, streaming=False).local_reads
    assert options.on_data_loss == "fail"
    assert options.partition_bytes == 256 << 20
    assert options.consumer_group == ""
    assert options.payload_format == "binary"
    assert options.messages_max is None
    assert parse_source(TOPIC, streaming=False).starting == "earliest"


def test_names_are_compared_as_spark_compares_them() -> None:
    options = parse_source({"TOPIC": "shop/orders", "maxmessagespertrigger": "5"}, streaming=True)
    assert options.target.stream == "shop"
    assert options.messages_max == 5


def test_an_unknown_option_is_named_and_the_valid_ones_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"topics.*startingOffsets.*maxMessagesPerTrigger"):
        parse_source({**TOPIC, "topics": "x"}, streaming=True)
    with pytest.raises(ConfigError, match=r"startingOffsets.*takes address"):
        parse_sink({**TOPIC, "startingOffsets": "earliest"})


def test_tls_comes_from_options_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_sink(TOPIC).target.tls == TlsOptions()
    given = {**TOPIC, "tls.ca": "/ca.pem", "tls.serverName": "broker"}
    assert parse_sink(given).target.tls == TlsOptions(True, "/ca.pem", "broker")
    assert parse_sink({**TOPIC, "tls.enabled": "true"}).target.tls == TlsOptions(True)
    assert not parse_sink({**given, "tls.enabled": "false"}).target.tls.enabled
    with pytest.raises(ConfigError, match=r"tls\.enabled"):
        parse_sink({**TOPIC, "tls.enabled": "maybe"})
    monkeypatch.setenv("HEADRACE_TLS_CA", "/env.pem")
    assert parse_sink(TOPIC).target.tls == TlsOptions(True, "/env.pem")
    assert parse_sink(given).target.tls.ca == "/ca.pem"
    assert parse_source(TOPIC, streaming=True).target.tls.enabled


def test_sparks_own_options_pass() -> None:
    assert (
        parse_sink({**TOPIC, "checkpointLocation": "/tmp/x", "path": "y"}).target.topic == "orders"
    )


@pytest.mark.parametrize(
    "bad",
    [
        {"topic": "orders"},
        {"stream": "shop"},
        {**TOPIC, "startingOffsets": "first"},
        {**TOPIC, "startingOffsets": '{"0": -1}'},
        {**TOPIC, "startingOffsets": '{"a": 1}'},
        {**TOPIC, "startingOffsets": "[1]"},
        {**TOPIC, "startingOffsets": '{"0": true}'},
        {**TOPIC, "endingOffsets": "earliest"},
        {**TOPIC, "maxMessagesPerTrigger": "0"},
        {**TOPIC, "maxBytesPerTrigger": "1k"},
        {**TOPIC, "columns": "offset,nothing"},
        {**TOPIC, "columns": "offset,offset"},
        {**TOPIC, "readFrom": "disk"},
        {**TOPIC, "localReads": "never"},
        {**TOPIC, "payloadFormat": "xml"},
        {**TOPIC, "includeHeaders": "maybe"},
        {**TOPIC, "onDataLoss": "ignore"},
        {**TOPIC, "partitionBytes": "0"},
        {**TOPIC, "columnStyle": "kafka", "columns": "payload"},
        {**TOPIC, "columnStyle": "kafka", "payloadFormat": "json"},
    ],
)
def test_bad_values_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_source(bad, streaming=True)


@pytest.mark.parametrize("streaming", [True, False])
def test_push_filters_is_refused_with_what_to_do_instead(streaming: bool) -> None:
    with pytest.raises(ConfigError, match=r"missed rows; set startingOffsets and endingOffsets"):
        parse_source({**TOPIC, "pushFilters": "true"}, streaming=streaming)


@pytest.mark.parametrize(
    "bad",
    [{"startingOffsets": "latest"}, {"endingOffsets": "earliest"}, {"consumerGroup": "g"}],
)
def test_bad_bounds_of_a_batch_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse_source({**TOPIC, **bad}, streaming=False)


def test_explicit_offsets_and_columns() -> None:
    options = parse_source(
        {
            **TOPIC,
            "startingOffsets": '{"0": 3, "2": 0}',
            "endingOffsets": '{"0": 9}',
            "columns": "payload, offset",
        },
        streaming=False,
    )
    assert options.starting == AtOffsets({"orders": {0: 3, 2: 0}})
    assert options.ending == AtOffsets({"orders": {0: 9}})
    assert options.columns == ("offset", "payload")
    without = parse_source({**TOPIC, "includeHeaders": "false"}, streaming=True)
    assert "headers" not in without.columns


def test_the_columns_of_kafka() -> None:
    kafka = {**TOPIC, "columnStyle": "kafka"}
    assert parse_source(kafka, streaming=True).columns == KAFKA_COLUMNS
    some = parse_source({**kafka, "columns": "value,timestampType"}, streaming=True)
    assert some.columns == ("value", "timestampType")


@pytest.mark.parametrize("name", ["password", "token"])
def test_a_secret_as_a_value_is_refused_without_repeating_it(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=env:NAME") as caught:
        parse_sink({**TOPIC, name: "hunter2"})
    assert "hunter2" not in str(caught.value)


def test_secrets_are_read_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    for name in ("HEADRACE_USERNAME", "HEADRACE_PASSWORD", "HEADRACE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = f"{tmp_path}/password"
    with open(file, "w") as out:
        out.write("s3cret\n")
    target = parse_sink({**TOPIC, "username": "me", "password": f"file:{file}"}).target
    assert "s3cret" not in repr(target)
    assert target.credentials.resolve() == ("me", "s3cret", "")
    with pytest.raises(ConfigError, match="HEADRACE_USERNAME"):
        Credentials().resolve()
    monkeypatch.setenv("HEADRACE_USERNAME", "u")
    monkeypatch.setenv("HEADRACE_PASSWORD", "p")
    assert Credentials().resolve() == ("u", "p", "")
    monkeypatch.setenv("HEADRACE_TOKEN", "t")
    assert Credentials().resolve() == ("", "", "t")
    with pytest.raises(ConfigError, match="cannot read file:/nowhere"):
        Credentials(token="file:/nowhere").resolve()
