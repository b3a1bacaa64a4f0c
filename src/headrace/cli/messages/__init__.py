"""headrace produce, consume, export, import and replay: messages into topics, and out of them.

Lines, files and other servers come in and become messages (`produce.py`, `importing.py`); messages
come in and become lines and files (`consume.py`, `exporting.py`), or messages of another topic
(`replay.py`). `records.py` is a message as a line of text, which all of them share. The copying
itself, with its positions, is done by `headrace.transfer`; `import_sources.py` and
`import_kafka.py` read what an import reads, `replay_jobs.py` keeps what a replay that was cut off
goes on from. Begin with `produce.py`.
"""
