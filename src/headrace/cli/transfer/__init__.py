"""headrace export, import and replay: messages out of topics, and into them.

Files and other servers come in or go out; the copying itself, with its positions, is done by
`headrace.transfer`. `import_sources.py` and `import_kafka.py` read sources, `exporting_formats.py`
writes files, `replay_jobs.py` keeps what a replay that was cut off goes on from. Begin with
`exporting.py`.
"""
