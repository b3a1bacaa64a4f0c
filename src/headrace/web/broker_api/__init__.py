"""The JSON API of streams, topics, messages, groups and users."""
