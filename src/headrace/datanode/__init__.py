"""The data node: keeps ranges on its disk, serves them, and replicates those that it leads.

Requests of the SBP come in through `handlers`: APPEND goes to `append`, FETCH to `fetch`, and what
the placement manager decides to `control`. An append is acknowledged when the log has it (see
`storage`) and, for a range with replicas, when enough of them have it too (`replication`). `state`
decides without I/O what a request may do; `service` is the shell, which owns the log store, the
sockets and all parts; `node` is what handlers see of it.

Begin to read at `service`, then `handlers` and `state`.
"""
