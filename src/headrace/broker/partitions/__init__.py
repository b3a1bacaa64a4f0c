"""Open partitions: the one writer of each stream, stored offsets, sizes, retention."""
