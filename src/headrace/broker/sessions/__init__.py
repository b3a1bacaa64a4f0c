"""Connections of clients: who they are, what they may do, which of their requests were applied.

A `Session` begins with a connection and ends with it; a login gives it a user, and its requests
show which dialect it speaks, and so by which rules its requests are understood.
`authorization.py` answers who asks and what they may do, `request_dedup.py` whether a numbered
request was answered before. `audit.py` writes down what changed. Begin to read in `sessions.py`.
"""
