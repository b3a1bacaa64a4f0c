"""One range: the log of a part of a stream, as its `RangeLog` offers it.

`log` holds the parts: `writer` takes appends and hands them to group commit, `reader` answers from
the tail cache or the segment files, `control` changes the metadata (seal, end, trim, epoch),
`repair` replaces damaged batches. They share the `progress`: offsets, status, segments. `recovery`
finds out at every open what the files hold.

Begin to read at `log`, then `progress` and `writer`.
"""
