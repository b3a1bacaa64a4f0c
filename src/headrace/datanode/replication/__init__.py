"""Replication: a primary's batches go to its secondaries, and back where a replica lost them.

`leader` holds the ranges that this node leads, and acknowledges what enough replicas have;
`commitment` decides that without I/O. `sender` carries the batches of all ranges to one other node.
`copying` fetches what a replica misses, or has damaged.
"""
