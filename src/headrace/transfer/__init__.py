"""Messages from one topic into another, each once: copies, dead letters and sending them again."""
