"""headrace pipeline, container, operator, window, event, dead-letters."""
