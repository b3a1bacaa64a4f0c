"""Connections of clients: who they are, what they may do, which of their requests were applied.

A `Session` begins with a connection and ends with it; a login gives it a user, and its requests
show which dialect it speaks. `authorization.py` answers who asks and what they may do,
`dialect_rules.py` what the same request means to clients of one era, `request_dedup.py` whether a
numbered request was answered before. `audit.py` writes down what changed. Begin to read in
`sessions.py`.
"""
