"""The broker: Iggy's protocol in, record batches of SBP streams out.

A connection's frames come in from `net`; `dispatch.py` decodes, authorises and answers each request
with one of `handlers/`. A handler works on `core.Broker`, which owns everything: the catalogue of
users, streams and topics, the stored offsets, the open partitions, the poll caches, the windows
that publishers stage, and the sessions. A partition is a stream that only the leading broker
writes; `sbp_client` carries its batches to the data nodes. `service.py` leads while it holds the
lease, one `term` at a time, and stands by otherwise. Begin to read in `dispatch.py`, with
`on_request`.
"""
