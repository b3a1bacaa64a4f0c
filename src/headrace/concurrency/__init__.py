"""Tasks with an owner, locks by key, trying again, and a loop for callers that block."""
