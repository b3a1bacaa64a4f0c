"""What the placement manager decides about this node's ranges, and what the node remembers of it.

`placement_contact` keeps in touch: heartbeats, load, the list of ranges. `ranges` carries out what
is decided: opened, sealed, ended, copied, trimmed, removed. `fences` remembers ranges that never
come back, `quarantine` those that nobody lists, `identity` who the node is.
"""
