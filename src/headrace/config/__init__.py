"""The settings of a process, as frozen structures.

In come the bytes of a settings file and what flags and the environment said; out comes one
`Settings` object, checked. It is made once, in `cli`; each service gets its own section as a
constructor argument, and nothing else reads a file, the environment or a global for it.
`settings` has the root, its parser and what a snapshot shows; `broker`, `datanode`, `placement`,
`controller` and `process` have the sections; `advanced` says which settings are for operators and
where the file has the others. Begin with `settings.parse_settings`. docs/settings.md is made from
the descriptions in these classes.
"""
