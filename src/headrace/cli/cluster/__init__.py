"""headrace cluster, range, node: a cluster on this machine, and a look at any other."""
