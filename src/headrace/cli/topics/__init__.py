"""headrace stream, topic, partition, segment, group, offset, user, permission, token."""
