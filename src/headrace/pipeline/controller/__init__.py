"""The pipeline controller: runs applications in containers and supervises them.

In come packages and wishes of people (`operations.py`), heartbeats and errors of containers
(`umbilical.py`), ends of processes (`running.py`) and ticks (`controller.py`). What follows from
them is decided in `application/`, which does no I/O; `action_performer.py` carries it out, and
`journal.py` makes it durable first. Out go processes of containers (`container_launches.py`,
`launcher.py`), topics between them (`broker_edges.py`) and the views that pages and commands read
(`views.py`).

Begin with `controller.py`, which makes these parts and joins them. Each application has one lock:
whoever feeds it an event holds the lock until the actions are carried out.
"""
