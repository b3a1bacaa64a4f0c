"""What a payload format needs to know, out of the source's and the sink's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headrace.errors import ConfigError

PayloadFormat = Literal["binary", "string", "json", "csv", "avro", "arrow", "protobuf"]
ValueFormat = Literal["json", "avro", "arrow"]

PAYLOAD_FORMATS = ("binary", "string", "json", "csv", "avro", "arrow", "protobuf")
VALUE_FORMATS = ("json", "avro", "arrow")
RAW_FORMATS = ("binary", "string")
FORMAT_OPTIONS = (
    "deadLetterTopic",
    "csvDelimiter",
    "avroSchema",
    "protobufDescriptor",
    "protobufMessage",
)
DESCRIPTION_BYTES_MAX = 16 << 20  # of an Avro schema or a protobuf descriptor set

_OF_FORMAT = {
    "csvDelimiter": "csv",
    "avroSchema": "avro",
    "protobufDescriptor": "protobuf",
    "protobufMessage": "protobuf",
}


@dataclass(frozen=True, slots=True)
class FormatOptions:
    message_columns: tuple[str, ...] = ()
    """Columns of the schema that are the message's own, not fields of its payload."""
    dead_letter_topic: str = ""
    csv_delimiter: str = ","
    avro_schema: str = field(default="", repr=False)
    protobuf_descriptor: bytes = field(default=b"", repr=False)
    protobuf_message: str = ""


def parse_format(
    given: Mapping[str, str], payload_format: str, columns: tuple[str, ...]
) -> FormatOptions:
    """`given` has lower-case names. Files are read here, on the driver: executors need no copy."""
    for name, owner in _OF_FORMAT.items():
        if name.lower() in given and owner != payload_format:
            raise ConfigError(f"{name} is for payloadFormat={owner}, not {payload_format}")
    if payload_format in RAW_FORMATS:
        if "deadlettertopic" in given:
            raise ConfigError(
                f"payloadFormat={payload_format} reads every payload: no deadLetterTopic is needed"
            )
        return FormatOptions()
    delimiter = given.get("csvdelimiter", ",")
    if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"csvDelimiter is one ASCII character, no quote or line end: {delimiter}")
    return FormatOptions(
        message_columns=columns if "columns" in given else (),
        dead_letter_topic=given.get("deadlettertopic", ""),
        csv_delimiter=delimiter,
        avro_schema=_avro_schema(given) if payload_format == "avro" else "",
        protobuf_descriptor=_descriptor(given) if payload_format == "protobuf" else b"",
        protobuf_message=_needed(given, "protobufMessage") if payload_format == "protobuf" else "",
    )


def parse_value_schema(given: Mapping[str, str], value_format: str) -> str:
    """The Avro schema of a sink; "" for other formats."""
    if value_format == "avro":
        return _avro_schema(given)
    if "avroschema" in given:
        raise ConfigError("avroSchema is for valueFormat=avro")
    return ""


def _avro_schema(given: Mapping[str, str]) -> str:
    text = _needed(given, "avroSchema")
    if text.startswith("file:"):
        return _load("avroSchema", text.removeprefix("file:")).decode(errors="replace")
    return text


def _descriptor(given: Mapping[str, str]) -> bytes:
    return _load("protobufDescriptor", _needed(given, "protobufDescriptor").removeprefix("file:"))


def _needed(given: Mapping[str, str], name: str) -> str:
    value = given.get(name.lower(), "")
    if not value:
        raise ConfigError(f"this format needs the option {name}")
    return value


def _load(name: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            content = file.read(DESCRIPTION_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {name} {path}: {error.strerror}") from error
    if len(content) > DESCRIPTION_BYTES_MAX:
        raise ConfigError(f"{name} {path} is larger than {DESCRIPTION_BYTES_MAX} bytes")
    return content
