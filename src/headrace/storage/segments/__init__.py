"""Segment files of a range: batches, their sparse index, marks of groups, scans, open files."""
