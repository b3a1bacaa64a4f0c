"""headrace up, down and the roles of a cluster, and what looks at a server from outside.

Options come in and become settings; a process that serves goes out. The process itself is built and
owned by `headrace.process.startup`; here are the commands alone. Begin with `up.py`.
"""
