"""What runs inside Spark's own processes: the data source, its sink, formats, stores, the session.

In come topics of a Headrace or Iggy server and rows of a query; out go Arrow batches of messages
and published windows. `source/` reads topics and `sink/` writes them; `edges/` does both for the
topics between two queries of a pipeline. `formats/` turns payloads into typed columns and back,
`stores/` writes windows to what is not a topic, and `session/` makes the Spark session. `server.py`
owns the connection that all of them share in one process. Begin with `source/source.py`; Spark
finds it through the package `pyspark_headrace`. `limited_daemon.py` is named in users' settings.
"""
