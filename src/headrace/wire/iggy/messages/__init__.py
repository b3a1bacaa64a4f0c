"""Request and response bodies, one module per family of commands.

A body comes in as bytes with the dialect it is written in, and goes out as a frozen value; values
become bytes in the same place. `commands.py` of the package above says which body belongs to which
command. Begin to read with `topics.py`, which has a bit of everything; `messages.py` is the hot
path.
"""
