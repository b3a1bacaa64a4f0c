"""headrace cluster, range and node: a cluster on this machine, and a look at any other.

`local_cluster.py` owns the processes of a local cluster and the file that names them. Every other
command asks the placement managers through `cluster_client.py`, which is where the options that say
which cluster become a connection. Begin with `cluster.py`.
"""
