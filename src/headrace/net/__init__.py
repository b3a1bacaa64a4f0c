"""Connections: bytes of the four protocols in, decoded requests out to whoever serves them.

`iggy_server.py` and `iggy_quic.py` serve clients of the broker, whose connections may move from one
process to another (`iggy_moving.py`), `sbp_server.py` peers and readers of the log
(`sbp_connection.py` each connection, `sbp_requests.py` its requests), `hadoop_rpc.py` the
containers of pipelines. `sbp_channel.py` is the calling side of SBP, over TCP or inside one
process; `peer_link.py` and `peer_server.py` are the two ends of a link between brokers. What a
server needs besides is apart: who may hold memory and for how long (`admission.py`, `flow.py`),
proofs of who a peer is (`credentials.py`) and what it may ask (`sbp_routes.py`), TLS and QUIC.
Nothing here knows what a command means: handlers are given. Begin to read in `iggy_server.py` or
`sbp_server.py`.
"""
