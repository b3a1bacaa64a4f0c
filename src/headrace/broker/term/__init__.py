"""Leading and standing by.

`term.Term` is one time of leading: it acquires the lease, replays the logs into a new `Broker`,
opens the listeners of `transports.py`, and undoes all of that when the lease is lost or given back.
Before and between terms `standby_listener.py` passes connections on to the broker that leads, which
`broker_registry.py` and the placement manager's lease tell. Begin to read in `term.py`.
"""
