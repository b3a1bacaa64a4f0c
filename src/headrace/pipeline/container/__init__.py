"""A container: the driver process that runs operators as Spark queries and reports on them.

In come deploy requests, in the answers to heartbeats; out go heartbeats with what each operator
did in which window. `container.py` is the process: it logs in over the umbilical (`umbilical.py`),
beats, and hands requests to the `Workload`, which owns the operators and their queries. For an
ordinary PySpark script that is `script_workload.py`. `query_start.py` builds and starts queries in
the container's session, `query_run.py` is one of them, `window_log.py` gives each batch its window,
`bad_batch.py` goes on without the records that make a batch fail. `heartbeat.py` makes the
figures. Whether a container is dead is decided by the controller, never here. Begin with
`container.py`, then `workload.py`.
"""
