"""Writing to topics with Spark, each window once.

In come the rows of a micro-batch or a job, as Arrow batches; out go messages. Tasks encode and
stage their rows, the driver closes the window with exactly what the tasks named, so a task that ran
twice leaves no trace (`sink.py`). `publish.py` does the same for a frame inside a pipeline's query.
Connections belong to `spark/server.py`. Begin with `sink.py`.
"""
