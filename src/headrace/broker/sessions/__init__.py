"""Connections of clients: who they are, what they may do, which of their requests were applied."""
