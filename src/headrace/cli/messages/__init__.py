"""headrace produce and consume, and messages as lines of text."""
