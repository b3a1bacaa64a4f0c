"""Windows: messages of many tasks that become visible together, once.

A publisher's tasks stage messages in streams of their own (`staging.py`). When it closes a window,
`publishing.py` moves the staged messages into their topics and writes down how far it came, so that
a broker that takes over goes on from there. `publishers.py` is the state of that without I/O, and
`window_topics.py` that of topics which keep a list of their windows. Begin in `publishing.py`.
"""
