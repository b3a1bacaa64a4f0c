"""From what a user declared to what runs where: plans, packages and versions.

In comes an application or a script; out come the plans that the controller journals. `logical.py`
has the logical plan (`logical_json.py` makes it of an application), `physical.py` decides which
operators share a container, `edges.py` makes the topics between containers, `resources.py` gives
them memory and cores, `deploy.py` writes what a container is told. `packages.py` keeps the code of
an application, `loading.py` gets the application out of it, and `versions.py` tells what a new
version keeps of the old one's checkpoints. Nothing here owns a running thing: the controller does.
Begin with `logical.py`, then `physical.py`.
"""
