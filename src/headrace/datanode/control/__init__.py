"""What the placement manager decides about this node's ranges, and what the node remembers of it.

`placement_contact` keeps in touch: heartbeats, load, the list of ranges. `ranges` carries out what
is decided: opened, sealed, ended, copied, trimmed, removed. `node_files` remembers who the node is,
which ranges never come back (fences), and which are kept aside because nobody lists them
(quarantine).
"""
