"""Payloads that do not fit their schema, with the reason, for whoever keeps them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

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
