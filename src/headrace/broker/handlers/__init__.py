"""One function per command: `(broker, session, request) -> response`, or None for an empty reply.

A handler raises a HeadraceError to refuse. Whether the caller is logged in and allowed to is
checked before, from the command table (`dispatch.py`).
"""
