"""The stream block protocol: frames with FlatBuffers headers, and record batches as payload.

Bytes come in and values go out, without I/O. `connection` is the state machine of one connection
over `frames`; `opcodes` is the table of requests, `messages` their headers. `flat` encodes and
decodes the headers, with `header_cache` for those that come again and again. `records` is the
format of batches; `multipart` joins long answers; `errors` are the status codes.

Begin to read at `frames`, then `opcodes` and `messages`.
"""
