"""Options of `spark.read.format("headrace")` and its three siblings, parsed and checked at once.

Spark shows options in plans, logs and its UI, so a secret is never an option's value: it comes from
the environment, or the option holds a reference, `env:NAME` or `file:PATH`, which is resolved only
where the connection is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from headrace.client.partition_reader import ReadFrom
from headrace.client.url import TOKEN_FILE_VARIABLE, TlsOptions, parse_switch, tls_from
from headrace.errors import ConfigError
from headrace.spark.formats.options import (
    FORMAT_OPTIONS,
    PAYLOAD_FORMATS,
    RAW_FORMATS,
    VALUE_FORMATS,
    FormatOptions,
    PayloadFormat,
    ValueFormat,
    parse_format,
    parse_value_schema,
)
from headrace.spark.source.batch_plan import OnDataLoss
from headrace.spark.source.positions import Position, Topics, parse_position, parse_topics
from headrace.wire.iggy.columns import COLUMNS

ColumnStyle = Literal["headrace", "kafka"]
Delivery = Literal["auto", "exactly-once", "at-least-once"]

DEFAULT_ADDRESS = "127.0.0.1:8090"
KAFKA_COLUMNS = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
)
PARTITION_BYTES = 256 << 20

_CONNECTION = (
    "address",
    "username",
    "password",
    "token",
    "stream",
    "topic",
    "tls.enabled",
    "tls.ca",
    "tls.serverName",
)
SOURCE_OPTIONS = (
    *_CONNECTION,
    "startingOffsets",
    "endingOffsets",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "partitionBytes",
    "consumerGroup",
    "onDataLoss",
    "skipBacklog",
    "columns",
    "columnStyle",
    "includeHeaders",
    "readFrom",
    "localReads",
    "payloadFormat",
    *FORMAT_OPTIONS,
)
SINK_OPTIONS = (*_CONNECTION, "delivery", "valueFormat", "avroSchema")
# Spark itself puts these among the options of a writer or reader.
_SPARKS_OWN = frozenset({"path", "checkpointlocation", "queryname", "outputmode"})


@dataclass(frozen=True, slots=True)
class Lent:
    """What a driver lends its tasks. Another one of the same scope is the same, only newer."""

    scope: str
    text: str = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, as references; the secret itself is read by `resolve`, where it is used."""

    username: str = "env:HEADRACE_USERNAME"
    password: str = "env:HEADRACE_PASSWORD"
    token: str = "env:HEADRACE_TOKEN"
    lent: Lent | None = None
    """Instead of all of these: of a task, whose driver is a container of a pipeline."""

    def resolve(self) -> tuple[str, str, str]:
        """(username, password, token); a token, if there is one, leaves the other two empty."""
        token = self.resolve_token()
        if token:
            return "", "", token
        username = self.username
        if username.startswith(("env:", "file:")):
            username = resolve_reference(username)
        password = resolve_reference(self.password)
        if not username or not password:
            raise ConfigError(
                "no credentials: set HEADRACE_USERNAME and HEADRACE_PASSWORD, or HEADRACE_TOKEN, "
                "in the environment of the driver and the executors, or give the options "
                "username and password=env:NAME or password=file:PATH"
            )
        return username, password, ""

    def resolve_token(self) -> str:
        """Empty for none. A container's is in a file, where the controller renews it."""
        if self.lent is not None:
            return self.lent.text
        token = resolve_reference(self.token)
        if token or self != Credentials() or os.environ.get("HEADRACE_USERNAME"):
            return token
        path = os.environ.get(TOKEN_FILE_VARIABLE, "")
        return resolve_reference(f"file:{path}") if path else ""


@dataclass(frozen=True, slots=True)
class Target:
    """A topic on a server."""

    address: str
    credentials: Credentials
    stream: str
    topic: str
    tls: TlsOptions = field(default_factory=TlsOptions)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    target: Target
    """Its topic is the option's text; `topics` is what that means."""
    topics: Topics
    starting: Position
    ending: Position
    messages_max: int | None
    bytes_max: int | None
    partition_bytes: int
    consumer_group: str
    on_data_loss: OnDataLoss
    skip_backlog: bool
    columns: tuple[str, ...]
    column_style: ColumnStyle
    read_from: ReadFrom
    local_reads: bool
    """Whether tasks read the files of a data node on their machine, if they can."""
    payload_format: PayloadFormat
    format: FormatOptions


@dataclass(frozen=True, slots=True)
class SinkOptions:
    target: Target
    delivery: Delivery = "auto"
    value_format: ValueFormat | None = None
    """How rows without a payload column are written; None: as nobody chose, as JSON."""
    avro_schema: str = field(default="", repr=False)


def parse_source(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    if any(name.lower() == "pushfilters" for name in options):
        raise ConfigError(
            "there is no option pushFilters any more: Spark used what it had planned with filters "
            "for every later query of the same DataFrame, which then missed rows; set "
            "startingOffsets and endingOffsets instead, which also take times"
        )
    given = _known(options, SOURCE_OPTIONS)
    stream, topics = parse_topics(given.get("stream", ""), given.get("topic", ""))
    first = given.get("startingoffsets", "latest" if streaming else "earliest")
    starting = parse_position("startingOffsets", first, topics)
    ending = parse_position("endingOffsets", given.get("endingoffsets", "latest"), topics)
    if not streaming and starting == "latest":
        raise ConfigError("startingOffsets=latest reads nothing in a batch; use earliest or JSON")
    if ending == "earliest":
        raise ConfigError("endingOffsets is latest, a time or JSON per partition")
    if not streaming and "consumergroup" in given:
        raise ConfigError("consumerGroup is for streams; a batch read leaves no position")
    if not streaming and "skipbacklog" in given:
        raise ConfigError("skipBacklog is for streams; a batch read has no backlog")
    style = _choice(given, "columnStyle", ("headrace", "kafka"))
    payload_format = _choice(given, "payloadFormat", PAYLOAD_FORMATS)
    if style == "kafka" and payload_format not in RAW_FORMATS:
        raise ConfigError("columnStyle=kafka is for payloads as they are, binary or string")
    columns = _columns(given, KAFKA_COLUMNS if style == "kafka" else COLUMNS)
    return SourceOptions(
        target=_server(given, stream, str(topics)),
        topics=topics,
        starting=starting,
        ending=ending,
        messages_max=_positive(given, "maxMessagesPerTrigger"),
        bytes_max=_positive(given, "maxBytesPerTrigger"),
        partition_bytes=_positive(given, "partitionBytes") or PARTITION_BYTES,
        consumer_group=given.get("consumergroup", ""),
        on_data_loss=_choice(given, "onDataLoss", ("fail", "skip")),  # type: ignore[arg-type]  # checked against the literal's values
        skip_backlog=_choice(given, "skipBacklog", ("false", "true")) == "true",
        columns=columns,
        column_style=style,  # type: ignore[arg-type]  # likewise
        read_from=_choice(given, "readFrom", ("auto", "data-nodes", "broker")),  # type: ignore[arg-type]  # likewise
        local_reads=_choice(given, "localReads", ("true", "false")) == "true",
        payload_format=payload_format,  # type: ignore[arg-type]  # likewise
        format=parse_format(given, payload_format, columns),
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    given = _known(options, SINK_OPTIONS)
    value_format = _choice(given, "valueFormat", VALUE_FORMATS) if "valueformat" in given else None
    return SinkOptions(
        target=_target(given),
        delivery=_choice(given, "delivery", ("auto", "exactly-once", "at-least-once")),  # type: ignore[arg-type]  # checked against the literal's values
        value_format=value_format,  # type: ignore[arg-type]  # likewise
        avro_schema=parse_value_schema(given, value_format or "json"),
    )


def dead_letter_target(source: Target, name: str) -> Target:
    """`topic` in the same stream, or `stream/topic`."""
    stream, slash, topic = name.rpartition("/")
    if "/" in stream or not topic or (slash and not stream):
        raise ConfigError(f"deadLetterTopic is a topic of the same stream, or stream/topic: {name}")
    target = replace(source, stream=stream or source.stream, topic=topic)
    if (target.stream, target.topic) == (source.stream, source.topic):
        raise ConfigError("deadLetterTopic must be another topic than the one that is read")
    return target


def _known(options: Mapping[str, str], valid: tuple[str, ...]) -> dict[str, str]:
    """The options by lower-case name, as Spark compares them; ConfigError for a name not in use."""
    lower = {name.lower() for name in valid}
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(name for name in options if name.lower() not in lower | _SPARKS_OWN)
    if unknown:
        raise ConfigError(
            f"unknown option {', '.join(unknown)}; format headrace takes {', '.join(valid)}"
        )
    return given


def _target(given: Mapping[str, str]) -> Target:
    stream, topic = given.get("stream", ""), given.get("topic", "")
    if not stream and topic.count("/") == 1:  # the short form `topic=shop/orders`
        stream, topic = topic.split("/")
    if not stream or not topic:
        raise ConfigError("options stream and topic are both needed, or topic=stream/topic")
    return _server(given, stream, topic)


def _server(given: Mapping[str, str], stream: str, topic: str) -> Target:
    return Target(
        address=given.get("address") or os.environ.get("HEADRACE_ADDRESS") or DEFAULT_ADDRESS,
        credentials=_credentials(given),
        stream=stream,
        topic=topic,
        tls=_tls(given),
    )


def _tls(given: Mapping[str, str]) -> TlsOptions:
    """The options, else the environment; naming authorities asks for TLS, unless it says no."""
    set_outside = tls_from(os.environ)
    ca = given.get("tls.ca", set_outside.ca)
    enabled = set_outside.enabled or "tls.ca" in given
    if "tls.enabled" in given:
        enabled = parse_switch("tls.enabled", given["tls.enabled"])
    return TlsOptions(
        enabled=enabled,
        ca=ca,
        server_name=given.get("tls.servername", set_outside.server_name),
    )


def _credentials(given: Mapping[str, str]) -> Credentials:
    for name in ("password", "token"):
        if name in given and not given[name].startswith(("env:", "file:")):
            raise ConfigError(
                f"option {name} would stand in Spark's plans and logs; "
                f"give a reference, {name}=env:NAME or {name}=file:PATH"
            )
    own = Credentials()
    return Credentials(
        username=given.get("username", own.username),
        password=given.get("password", own.password),
        token=given.get("token", own.token),
    )


def resolve_reference(reference: str) -> str:
    """What `env:NAME` or `file:PATH` stands for; an unset variable is empty."""
    kind, _, place = reference.partition(":")
    if kind == "env":
        return os.environ.get(place, "")
    try:
        return Path(place).read_text().strip()
    except OSError as error:
        raise ConfigError(f"cannot read {reference}: {error.strerror}") from error


def _positive(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ConfigError(f"{name} is a whole number above 0: {text}")
    return int(text)


def _choice(given: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    text = given.get(name.lower(), values[0])
    if text not in values:
        raise ConfigError(f"{name} is one of {', '.join(values)}: {text}")
    return text


def _columns(given: Mapping[str, str], valid: tuple[str, ...]) -> tuple[str, ...]:
    headers = _choice(given, "includeHeaders", ("true", "false")) == "true"
    text = given.get("columns")
    if text is None:
        return tuple(name for name in valid if headers or name != "headers")
    wanted = [name.strip() for name in text.split(",")]
    unknown = [name for name in wanted if name not in valid]
    if unknown or len(set(wanted)) != len(wanted):
        raise ConfigError(f"columns is a list of distinct names from {', '.join(valid)}: {text}")
    return tuple(name for name in valid if name in wanted)
