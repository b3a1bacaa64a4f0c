"""headrace bench: how much a broker takes and gives."""
