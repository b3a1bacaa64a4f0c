"""One segment file of a range: batches and marks, with a sparse index beside it.

`segment` is the file as the event loop knows it, and the write that a group commit makes to it.
`formats` has its bytes: marks, which tell a torn tail from damage, and the index, which finds a
batch by offset or time. `scan` walks a file and finds what is valid; `reader` takes batches out.
`files` does the file work of a range's segments in threads, with files from the pool of
`open_files`.
"""
