"""headrace up, down and the roles of a cluster, and what looks at a server from outside."""
