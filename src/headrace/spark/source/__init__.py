"""Reading topics with Spark: offsets, splits, losses, and the reading itself."""
