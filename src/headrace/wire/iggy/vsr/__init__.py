"""Dialect C of Iggy's protocol: framing, batches, replies, and a client's numbers."""
