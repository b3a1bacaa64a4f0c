"""Arrow payloads: each is an IPC stream, and as many rows as its record batches hold.

Columns are matched by name; a missing one is null, others are ignored, types are cast where nothing
is lost. A payload that fails in any part gives no row at all. Bytes are checked in full before a
value of them is used.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.spark.formats.decoding import Bad, Decoded, UnreadableError, reason_of


class ArrowDecoder:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema

    def __call__(self, payloads: pa.BinaryArray) -> Decoded:
        tables: list[pa.Table] = []
        counts = np.zeros(len(payloads), np.int64)
        bad: list[Bad] = []
        for row, payload in enumerate(payloads):
            try:
                table = self._read(payload.as_buffer())
            except UnreadableError as error:
                bad.append(Bad(row, reason_of(error)))
                continue
            tables.append(table)
            counts[row] = table.num_rows
        merged = pa.concat_tables(tables) if tables else self._schema.empty_table()
        return Decoded(merged, np.repeat(np.arange(len(payloads)), counts), bad)

    def _read(self, payload: pa.Buffer) -> pa.Table:
        try:
            with pa.ipc.open_stream(payload) as reader:
                table = reader.read_all()
            table.validate(full=True)
            return self._fit(table)
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise UnreadableError(str(error)) from None

    def _fit(self, table: pa.Table) -> pa.Table:
        columns = []
        for each in self._schema:
            found = table.schema.get_all_field_indices(each.name)
            if len(found) > 1:
                raise UnreadableError(f"two columns {each.name}")
            if found:
                column = table.column(found[0])
                columns.append(column if column.type == each.type else column.cast(each.type))
            else:
                columns.append(pa.nulls(table.num_rows, each.type))
        return pa.Table.from_arrays(columns, schema=self._schema)
