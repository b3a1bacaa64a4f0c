"""Reading topics with Spark, as a table and as a stream.

In come the options of a user and Spark's calls (`source.py`); out go record batches. On the driver
`following` decides where the next micro-batch ends. `batch_plan` holds the offsets that Spark's
checkpoint stores, turns two of them into the ranges of tasks and decides about messages that are
gone. `positions` reads what the options say of topics and of where reading begins and ends. In a
task `reading` brings the messages of one range. Connections belong to `spark/server.py`. Begin with
`source.py`.
"""
