"""Dialect C of Iggy's protocol: framing, batches, replies, and a client's numbers.

Frames with a header of 256 bytes come in and become the same requests that the classic framing
gives; stored messages come in and become replies. Nothing here is kept but a client's identity and
its last number (`client.py`). Begin to read in `frames.py`.
"""
