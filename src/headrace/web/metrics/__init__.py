"""What each role tells Prometheus, and what `/health` and `/ready` answer.

A scrape comes in; families of the metrics in `headrace.observability.metrics` go out, read at that
moment from the counters that the roles keep. Each role has an `Observed...` class, which also
checks whether the role can serve. Begin with `process`, which serves the pages of one process;
`broker`, `cluster` and `pipelines` are the roles.
"""
