"""The metadata store of the placement managers, and the election over it.

`records` are the rows and the operations on them; `store` keeps them in SQLite for one placement
manager. Several share etcd: `election` says what they need of it and who leads, `etcd` is the
client, and `guarded_store` lets only the leader write.
"""
