"""The umbilical: what containers and the controller say to each other, as bytes and as values.

In come the bytes of Hadoop RPC version 9, out come calls with frozen dataclasses, and back; there
is no I/O here. `messages.py` has the dataclasses, `codec.py` turns them into protobuf and has the
one table of calls, `frames.py` and `rpc.py` carry them, `sasl.py` and `tokens.py` are the login of
a container. `windows.py` numbers windows and `attributes.py` names the settings that travel in a
plan. The sockets are the controller's and the container's. Begin with `messages.py`, then `rpc.py`.
"""
