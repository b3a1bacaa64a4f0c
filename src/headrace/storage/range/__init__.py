"""One range: what writes it, reads it, recovers it at every open and repairs it from a replica."""
