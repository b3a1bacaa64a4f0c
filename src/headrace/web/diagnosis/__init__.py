"""What is wrong with pipelines, broker and cluster, and what to do about it."""
