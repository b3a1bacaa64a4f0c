"""A Spark session as this project runs it: Java, settings, queries, scripts."""
