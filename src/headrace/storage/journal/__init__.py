"""The redo journal: one file that makes a group of writes to many files durable with one sync."""
