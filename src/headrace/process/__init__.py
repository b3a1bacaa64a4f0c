"""Which services run together in which process, and how such a process starts and ends."""
