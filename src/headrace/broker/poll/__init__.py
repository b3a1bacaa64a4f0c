"""What the broker keeps in memory to answer polls, and the polls that wait.

Stored batches come in from the data nodes, and frames of SENDs from the connections; pieces of
replies go out. `caches.PollCaches` owns all of it and holds it to one bound. `readahead.py` keeps
batches as they are stored, `replies.py` and `recent_sends.py` as readers get them that need another
form. What is kept never changes, so nothing has to be made invalid. Begin to read in `caches.py`.

Polls that find nothing wait in `held_polls.py`.
"""
