"""headrace top: what moves, live in the terminal."""
