"""How a process of Headrace starts, says that it is ready, serves and ends.

Settings come in from a file, the environment and the command line (`settings.py`); a process that
serves comes out: `headrace up` (`data_plane_process.py`) with the control plane as its child
(`control_plane_process.py`), or one role of a cluster (`role_process.py`). Each of the three owns
its event loop, its signals and its HTTP endpoint, and closes what it started. A note in the data
directory says which process serves it (`server_note.py`). Begin with `data_plane_process.py`.
"""
