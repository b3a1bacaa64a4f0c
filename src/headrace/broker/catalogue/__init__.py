"""Users, streams, topics, groups: the state, the decisions about it, the events that change it."""
