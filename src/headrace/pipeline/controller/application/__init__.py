"""One application's life, decided without I/O and without a clock.

In come events: heartbeats, ends of processes, errors, ticks, what people ask for; each with its
time. Out come actions for the shell (`pipeline/controller/controller.py`): make a record durable,
launch or kill a container, make, reset or purge the topics between containers.

Begin with `application.py`, which holds the parts, and `lifecycle.py`, which has the states and
the actions. `model.py` is what all parts share. `container_liveness.py` decides that a container
is dead, and what follows from it; `deployment.py` answers heartbeats.
"""
