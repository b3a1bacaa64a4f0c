"""Leading and standing by: lease, listeners, the registry of brokers."""
