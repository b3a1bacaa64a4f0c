"""Client of placement managers and data nodes: metadata, appends, fetches, state logs, leases."""
