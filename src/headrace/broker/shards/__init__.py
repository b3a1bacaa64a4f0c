"""Shards, the units of leadership, and the workers that lead them.

Every partition belongs to a shard, decided when the partition is created. Whoever holds a shard's
lease leads its partitions, and keeps the offsets that consumers stored for them (`led.py`,
`leases.py`, `offset_logs.py`). With one process all of that is one lease. Of several workers the
one that leads the first shard is the *coordinator*: it alone changes the catalogue, the groups and
the publishers, and decides who leads which shard (`coordinator.py`, `assignment.py`). The others
follow the catalogue's log (`worker.py`). A change is answered when every worker knows it.

A client is connected to any worker. What another one must answer is passed on over a link
(`forwarding.py`, `peers.py`, `links.py`), and answered there as if the client had come itself
(`serving.py`); `messages.py` is all that workers say to each other. A plain TCP connection whose
requests are all for one other worker of the machine moves there (`moving.py` has the rule,
`moved.py` what travels). `service.py` puts the parts together. Begin to read in `worker.py`.
"""
