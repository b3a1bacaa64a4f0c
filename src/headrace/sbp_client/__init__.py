"""The client of placement managers and data nodes, which the services of a cluster use.

In come appends, fetches and questions about streams; out go SBP requests to whoever holds a range.
`client.py` is the entrance: it keeps what placement said (`metadata`, `ranges`) and one connection
for each peer (`channels`). `fetch` reads, `producer` and `owned_stream` append, each with its own
rules of order and repetition. `state_log` keeps the state of a service in such a stream,
`state_follower` keeps a copy of it in another process, and `leadership` says which process may
write it. Begin with `client.py`.
"""
