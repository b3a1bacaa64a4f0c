"""APPEND: `requests` gives each batch its offset and answers once all of them are stored.

`producers` tells a repeated batch from a new one, `disk_share` bounds what anonymous peers may
store, and `in_process` is the short way for a broker in the same process.
"""
