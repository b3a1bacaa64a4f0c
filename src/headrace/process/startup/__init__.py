"""How a process of Headrace starts, says that it is ready, serves and ends.

Settings and secrets come in from a file, the environment and the command line (`settings.py`); a
process that serves comes out: `headrace up` (`data_plane_process.py`) with the control plane as its
child (`control_plane_process.py`) and, if there are several, with workers (`worker_supervision.py`
in the parent, `worker_process.py` in the child), or one role of a cluster (`role_process.py`). Each
of them owns its event loop, its signals (`serving.py`) and its HTTP endpoint (`observing.py`), and
closes what it started. A note in the data directory says which process serves it
(`server_note.py`). Begin with `data_plane_process.py`.
"""
