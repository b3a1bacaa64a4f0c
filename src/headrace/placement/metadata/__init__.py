"""The metadata store of the placement managers, and the election over it.

`records` are the rows and the operations on them; `store` keeps them in SQLite for one placement
manager. Several share etcd: `coordination` is what they need of it, `etcd` the client,
`guarded_store` lets only the leader write, and `election` says who leads.
"""
