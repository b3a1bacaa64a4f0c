"""Copies of what is appended: what is committed, what goes to which replica, filling gaps."""
