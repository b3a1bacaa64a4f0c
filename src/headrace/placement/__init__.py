"""The placement manager: which streams there are, on which data nodes their ranges lie.

Requests of the SBP come in through `handlers`. `state` and `nodes` decide without I/O; `changes`
carries a decision out: durable in the metadata store, applied, told to the data nodes
(`node_notices`, `node_calls`), answered. `sealing` ends a range and begins the next, `healing`
gives ranges another replica, `leases` elects brokers and controllers. One of several placement
managers leads: its `term` is the only way to change anything. `service` is the shell.

Begin to read at `service`, then `changes` and `state`.
"""
