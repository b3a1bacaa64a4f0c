"""Stores beside topics: a window of rows is written to one of them once.

In come a batch DataFrame, the query it belongs to and its window id; out comes how many rows were
written. Each module has `write_window` for one kind of store: Parquet files, a Delta table, a
PostgreSQL table. A store keeps the last window of a query beside the rows, in the same commit, so
that a batch that is run again adds nothing. Rows that a table cannot hold are refused before
anything is written (`columns`; PostgreSQL has rules of its own). The declarations that people write
are in `headrace.pipeline.declare.stores`. Begin with `parquet.py`, the smallest.
"""
