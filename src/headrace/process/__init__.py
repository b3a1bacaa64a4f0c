"""Which services run together in which process.

Settings and a `Runtime` come in; running services with their addresses come out. The data plane
(`data_plane.py`) holds log and broker, the control plane (`control_plane.py`) controller and
dashboard, `worker_plane.py` what one of several workers has, and each role of a cluster is a class
of `roles.py`. An object here owns what it starts and closes it in the other order. Begin with
`data_plane.py`; what turns these objects into processes of the system is in `startup/`.
"""
