"""Messages whose payloads have a schema, as rows of it: `payloadFormat` with `.schema(...)`.

The columns are exactly those of the schema. Most are fields of the payload; those that the option
`columns` names are the message's own. A payload that does not fit is never dropped in silence: it
becomes a row of nulls with the payload in the column `_corrupt`, goes to a dead-letter topic, or
fails the task with an error that says where it is and why. `Rejects` gives those payloads alone,
with the reason, for whoever keeps them.

A dead letter is the message as it was (payload, key and user headers), with headers that say where
it stood and why it is there. Tasks send them while they read, so a task that is repeated sends them
again: delivery is at least once, and the place in the headers tells repeats apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.client.arrow import payloads_of, to_area, to_record_batch
from headrace.errors import ConfigError, InvalidArgumentError, LocalProtocolError, NotFoundError
from headrace.spark.formats.decoding import CORRUPT, REST, Bad, Decoded, Decoder
from headrace.spark.formats.options import FormatOptions
from headrace.spark.options import dead_letter_target
from headrace.transfer.dead_letters import PREFIX
from headrace.wire.iggy.batch import split
from headrace.wire.iggy.columns import columns, cut

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.spark.options import Target
    from headrace.spark.server import Server
    from headrace.wire.iggy.batch import Positions
    from headrace.wire.iggy.columns import MessageBuffer

    KeepBad = Callable[[memoryview, Positions, list[Bad]], None]


class TypedRows:
    """Decodes the messages of one partition. ConfigError for a schema that cannot be read."""

    def __init__(
        self,
        payload_format: str,
        options: FormatOptions,
        schema: pa.Schema,
        *,
        stream: str,
        topic: str,
        partition: int,
        dead_letters: KeepBad | None = None,
    ) -> None:
        self._format = payload_format
        self._own = options.message_columns
        self._schema = schema
        self._place = {"stream": stream, "topic": topic, "partition": partition}
        self._dead_letters = dead_letters
        _check_schema(payload_format, options, schema)
        skipped = {*self._own, CORRUPT}
        self._decode = _decoder(
            payload_format,
            options,
            pa.schema([each for each in schema if each.name not in skipped]),
        )

    def read(self, area: memoryview, starts: Positions) -> Iterator[pa.RecordBatch]:
        """The rows of these messages; in several batches where they take a lot of memory."""
        payloads = payloads_of(area, starts)
        at = 0
        while at < len(payloads) or not at:
            decoded = self._decode(payloads.slice(at))
            taken = len(payloads) - at if decoded.taken is None else decoded.taken
            whole = taken == len(payloads)
            part = (area, starts) if whole else cut(area, starts, at, at + taken)
            yield self._rows(*part, payloads.slice(at, taken), decoded)
            at += max(1, taken)

    def _rows(
        self, area: memoryview, starts: Positions, payloads: pa.BinaryArray, decoded: Decoded
    ) -> pa.RecordBatch:
        table, rows = decoded.table, decoded.rows
        if decoded.bad and CORRUPT not in self._schema.names:
            if self._dead_letters is None:
                raise self._failure(decoded.bad, columns(area, starts).offset)
            self._dead_letters(area, starts, decoded.bad)
        corrupt = None
        if CORRUPT in self._schema.names:
            bad = [each.row for each in decoded.bad]
            order, rows = _with_bad(table.num_rows, rows, bad)
            table = table if order is None else table.take(order.good)
            kind = self._schema.field(CORRUPT).type
            corrupt = pa.nulls(table.num_rows, kind)
            if order is not None:
                corrupt = _texts(payloads.take(pa.array(bad)), kind).take(order.bad)
        return self._assemble(table, corrupt, self._own_columns(area, starts, rows))

    def _own_columns(
        self, area: memoryview, starts: Positions, rows: NDArray[np.int64] | None
    ) -> pa.RecordBatch | None:
        if not self._own:
            return None
        batch = to_record_batch(area, starts, **self._place, names=self._own)  # type: ignore[arg-type]  # names and a number
        return batch if rows is None else batch.take(pa.array(rows))

    def _assemble(
        self, table: pa.Table, corrupt: pa.Array | None, own: pa.RecordBatch | None
    ) -> pa.RecordBatch:
        arrays = []
        for name in self._schema.names:
            if name == CORRUPT:
                arrays.append(corrupt)
            elif own is not None and name in self._own:
                arrays.append(own.column(name))
            else:
                column = table.column(name)
                arrays.append(column.chunk(0) if column.num_chunks == 1 else _merged(column))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _failure(self, bad: list[Bad], offsets: NDArray[np.uint64]) -> InvalidArgumentError:
        stream, topic, partition = self._place.values()
        first = bad[0]
        more = f" (and {len(bad) - 1} more near it)" if len(bad) > 1 else ""
        return InvalidArgumentError(
            f"the message at offset {int(offsets[first.row])} of partition {partition} of "
            f"{stream}/{topic} is not {self._format} that fits the schema: {first.reason}{more}; "
            "to keep such messages give the schema a column `_corrupt string`, or set "
            "deadLetterTopic"
        )


class _Order:
    """Where the rows of a merge come from: indices into the good and the bad, null elsewhere."""

    def __init__(self, positions: NDArray[np.int64], good: int) -> None:
        from_bad = positions >= good
        self.good = pa.array(positions, mask=from_bad)
        self.bad = pa.array(positions - good, mask=~from_bad)


def _with_bad(
    good: int, rows: NDArray[np.int64] | None, bad: list[int]
) -> tuple[_Order | None, NDArray[np.int64] | None]:
    """Put a row for each bad payload where it belongs among the good ones."""
    if not bad:
        return None, rows
    assert rows is not None
    sources = np.concatenate([rows, np.array(bad, np.int64)])
    positions = np.argsort(sources, kind="stable")
    return _Order(positions, good), sources[positions]


def _texts(payloads: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_binary(kind):
        return payloads
    texts = [payload.decode("utf-8", errors="replace") for payload in payloads.to_pylist()]
    return pa.array(texts, pa.string())


def _merged(column: pa.ChunkedArray) -> pa.Array:
    merged = column.combine_chunks()
    return merged if isinstance(merged, pa.Array) else pa.concat_arrays(merged.chunks)


# --- the choice -----------------------------------------------------------------------------------


def _check_schema(payload_format: str, options: FormatOptions, schema: pa.Schema) -> None:
    if len(set(schema.names)) != len(schema.names):
        raise ConfigError("the schema has two columns of one name")
    for each in schema:
        if not each.nullable:
            raise ConfigError(f"column {each.name} may be missing in a payload: make it nullable")
    if CORRUPT in schema.names:
        kind = schema.field(CORRUPT).type
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            raise ConfigError(f"column {CORRUPT} must be string or binary, it is {kind}")
        if options.dead_letter_topic:
            raise ConfigError(
                f"a payload that does not fit goes to the column {CORRUPT} or to deadLetterTopic: "
                "choose one"
            )
    if REST in schema.names:
        if payload_format != "json":
            raise ConfigError(f"column {REST} is for payloadFormat=json")
        if not pa.types.is_string(schema.field(REST).type):
            raise ConfigError(f"column {REST} must be string")
    for name in options.message_columns:
        _check_own(name, schema)


def _check_own(name: str, schema: pa.Schema) -> None:
    if name not in schema.names:
        raise ConfigError(
            f"option columns names {name}, but the schema has no such column; with a payload "
            "format it says which columns of the schema are the message's own"
        )
    empty = to_record_batch(
        memoryview(b""), np.empty(0, np.uint32), stream="", topic="", partition=0, names=(name,)
    )
    expected = empty.schema.field(name).type
    if schema.field(name).type != expected:
        raise ConfigError(f"column {name} must be {expected}, it is {schema.field(name).type}")


def _decoder(payload_format: str, options: FormatOptions, schema: pa.Schema) -> Decoder:
    if payload_format == "json":
        from headrace.spark.formats.json_rows import JsonDecoder

        return JsonDecoder(schema)
    if payload_format == "csv":
        from headrace.spark.formats.csv_rows import CsvDecoder

        return CsvDecoder(schema, options.csv_delimiter)
    if payload_format == "avro":
        from headrace.spark.formats.avro_rows import AvroDecoder

        return AvroDecoder(schema, options.avro_schema)
    if payload_format == "protobuf":
        from headrace.spark.formats.protobuf_rows import ProtobufDecoder

        return ProtobufDecoder(schema, options.protobuf_descriptor, options.protobuf_message)
    from headrace.spark.formats.arrow_rows import ArrowDecoder

    return ArrowDecoder(schema)


REASON = "reason"


@dataclass(frozen=True, slots=True)
class Rejects:
    """Turns batches with a column `payload` into those rows whose payload does not fit, with a
    column REASON at their end. Small and picklable; runs in Spark's workers."""

    fields: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        from headrace.spark.formats.json_rows import JsonDecoder

        decode = JsonDecoder(self.fields)
        for batch in batches:
            bad = decode(batch.column("payload")).bad if batch.num_rows else []
            if bad:
                rejected = batch.take(pa.array([each.row for each in bad], pa.int64()))
                reasons = pa.array([each.reason for each in bad], pa.string())
                yield pa.RecordBatch.from_arrays(
                    [*rejected.columns, reasons], names=[*rejected.schema.names, REASON]
                )


_HEADERS = pa.map_(pa.string(), pa.binary())
_SEND_BYTES_MAX = 4 << 20


class DeadLetters:
    """Sends the bad messages of one partition."""

    def __init__(self, server: Server, source: Target, topic: str, partition: int) -> None:
        self._server = server
        self._source = source
        self._partition = partition
        self._target = dead_letter_target(source, topic)

    def __call__(self, area: memoryview, starts: Positions, bad: list[Bad]) -> None:
        letters = dead_letters(
            area,
            starts,
            bad,
            stream=self._source.stream,
            topic=self._source.topic,
            partition=self._partition,
        )
        for piece, positions in split(*letters, _SEND_BYTES_MAX):
            try:
                self._server.send_soon(self._target, None, piece, positions).result()
            except NotFoundError:
                self._server.create_topic(self._target)
                self._server.send_soon(self._target, None, piece, positions).result()


def dead_letters(
    area: memoryview,
    starts: Positions,
    bad: list[Bad],
    *,
    stream: str,
    topic: str,
    partition: int,
) -> MessageBuffer:
    """The messages to send for the bad ones of an area."""
    names = ("offset", "key", "headers", "payload")
    batch = to_record_batch(
        area, starts, stream=stream, topic=topic, partition=partition, names=names
    ).take(pa.array([each.row for each in bad], pa.int64()))
    offsets = batch.column("offset").to_pylist()
    added = [
        {
            f"{PREFIX}reason": each.reason.encode(),
            f"{PREFIX}stream": stream.encode(),
            f"{PREFIX}topic": topic.encode(),
            f"{PREFIX}partition": b"%d" % partition,
            f"{PREFIX}offset": b"%d" % offset,
        }
        for each, offset in zip(bad, offsets, strict=True)
    ]
    own = [dict(pairs or ()) for pairs in batch.column("headers").to_pylist()]
    for headers in ([{**a, **b} for a, b in zip(own, added, strict=True)], added):
        # Headers have a size limit: what is ours goes first, and the place leads to the original.
        with suppress(LocalProtocolError):
            pairs = pa.array([list(each.items()) for each in headers], _HEADERS)
            return to_area(batch.column("payload"), batch.column("key"), pairs)
    raise LocalProtocolError("a dead letter's headers are too large")
