"""Spark finds data sources in modules named `pyspark_*`: this one makes `format("headrace")` work.

Spark imports every such module at the first use of any Python source, so everything but the class
itself is imported when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]  # pyspark's classes are untyped
    """Reads and writes topics of a Headrace or Iggy server; see `headrace.spark.options`."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    def schema(self) -> StructType | str:
        from headrace.spark.edges.options import reads_windows

        if reads_windows(self.options):
            from headrace.spark.edges.source import edge_schema

            return edge_schema(self.options)
        from headrace.spark.source.source import raw_schema

        return raw_schema(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source.source import TopicReader

        return TopicReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.edges.options import reads_windows

        if reads_windows(self.options):
            from headrace.spark.edges.source import EdgeStreamReader

            return EdgeStreamReader(self.options, schema)
        from headrace.spark.source.source import TopicStreamReader

        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.sink.sink import TopicWriter

        return TopicWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.sink.sink import TopicStreamWriter

        return TopicStreamWriter(self.options, schema)
