"""What a user writes: applications, operators, topics and stores, and how they become DataFrames.

In come decorated functions; out come the streaming queries that Spark runs. `application.py` has
the decorators, `graph.py` what they make: topics, operators, sinks and their wiring.
`declarations.py` and `stores.py` have the single declarations, `dag.py` the other way to write
them. `stages.py` calls the functions of a graph and gives `Query` objects (`queries.py`); whoever
calls it says where rows come from (`inputs.py`) and starts the queries. `bad_rows.py` decides what
becomes of rows that do not fit, `trial.py` runs an application without a controller. Begin with
`application.py`, then `stages.py`.
"""
