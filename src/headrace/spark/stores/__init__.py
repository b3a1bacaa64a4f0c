"""Writing a window of rows to what is not a topic, once."""
