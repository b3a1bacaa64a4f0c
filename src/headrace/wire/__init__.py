"""Four protocols as bytes and values, without I/O, clock or threads.

Bytes of a peer come in, requests and events come out; values come in, bytes go out. `sbp` is what
placement managers and data nodes speak, `iggy` what clients of the broker speak, in all dialects,
`umbilical` what the controller and its containers speak, `peer` what processes of brokers speak
among themselves. None of the four knows another one, and none owns a connection: `net` does. Begin
to read with a protocol's table: `sbp/opcodes.py`, `iggy/commands.py`, `umbilical/codec.py`; of
`peer` with `peer/frames.py`.
"""
