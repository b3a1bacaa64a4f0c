"""Reading topics with Spark, as a table and as a stream.

In come the options of a user and Spark's calls (`source.py`); out go record batches. On the driver
`following` decides where the next micro-batch ends, `offsets` holds what Spark's checkpoint stores,
and `batch_plan` turns two offsets into the ranges of tasks and decides about messages that are
gone. In a task `reading` brings the messages of one range. Connections belong to `spark/server.py`.
Begin with `source.py`.
"""
