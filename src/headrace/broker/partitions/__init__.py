"""Partitions: each the messages of one SBP stream, which the leading broker alone writes.

`open_partitions.py` opens a partition at its first use and keeps it; `partition.py` turns SENDs
into record batches and polls into slices of stored batches. Beside them are the offsets that
consumers have stored, what is known of partitions that nobody has opened (`stored_sizes.py`), and
what decides how many copies there are and what may be forgotten. Begin to read in `partition.py`,
with `append`.
"""
