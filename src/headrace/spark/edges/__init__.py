"""Topics between two queries of a pipeline: whole windows, as the rows that were published.

In comes a window of rows from one query (`sink.py`), out go the same rows to the next (`source.py`)
once every publisher has closed that window. `offsets` says which windows a batch reads and which
share of them one instance takes, `options` is what a container hands to Spark. Nobody but a
pipeline's container uses this package. Begin with `source.py`.
"""
