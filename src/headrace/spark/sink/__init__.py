"""Writing to topics with Spark, each window once."""
