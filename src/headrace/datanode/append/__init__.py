"""From an APPEND request to batches in range logs, each producer record once."""
