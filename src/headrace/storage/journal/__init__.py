"""The redo journal: one file that makes a group of writes to many files durable with one sync.

Group commit hands it the writes of a group (`writer`), in the form of `records`. It syncs the files
that it names behind the acknowledgements, and then uses their space again. At every open `replay`
brings what it holds to the segment files, before anybody looks at these.
"""
