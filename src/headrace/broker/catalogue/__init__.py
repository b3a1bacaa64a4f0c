"""Users, streams, topics and consumer groups: the state, decisions about it, events that change it.

A handler calls a function of `decisions.py`, which looks at the state and gives an event or raises
a refusal. `core.Broker` writes the event to the log `s/catalogue`; `state.Catalogue` applies it,
now and at every replay, and alone changes the values in `resources.py`. Who is a member of a group
at this moment is known to `groups.py` and to no log. Begin to read in `state.py`.
"""
