"""Iggy's protocol in all its dialects: bytes in, values out, and back.

`request_stream.py` takes the bytes of a connection and gives requests: `classic_frames.py` has the
framing of dialects A to B2, `vsr/` that of dialect C. `commands.py` is the table of commands with
their bodies in `messages/`, made of the fields in `fields.py` and `primitives.py`. Inside Headrace
messages have one form, that of B2 (`batch.py`); other dialects are translated here. Which dialect a
client speaks is told by `detection.py`, what a server refuses and under which number by
`refusals.py`. Nothing here waits, logs or asks for the time. Begin to read in `dialects.py`, then
`commands.py`.
"""
