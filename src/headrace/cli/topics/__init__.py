"""headrace stream, topic, partition, segment, group, offset, user, permission and token.

Each command asks the broker once, over one connection of `headrace.cli.connection`, and prints what
the broker says. A module has the commands of two or three nouns; `users.py` also translates rules
that people write into those of the protocol. Begin with `topics.py`.
"""
