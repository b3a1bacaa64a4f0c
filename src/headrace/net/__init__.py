"""Connections: bytes of the three protocols in, decoded requests out to whoever serves them.

`iggy_server.py` and `iggy_quic.py` serve clients of the broker, `sbp_server.py` peers and readers
of the log, `hadoop_rpc.py` the containers of pipelines. `sbp_channel.py` is the calling side of
SBP, over TCP or inside one process. What a server needs besides is apart: who may hold memory and
for how long (`admission.py`, `flow.py`), proofs of who a peer is (`credentials.py`,
`sbp_access.py`), TLS and QUIC. Nothing here knows what a command means: handlers are given. Begin
to read in `iggy_server.py` or `sbp_server.py`.
"""
