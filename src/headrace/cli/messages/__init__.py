"""headrace produce and consume, and messages as lines of text.

Lines come in and become messages (`produce.py`, `lines.py`); messages come in and become lines
(`consume.py`, `consuming.py`). `records.py` is the form that both share with import and export, and
`points.py` reads positions of a topic as people write them. Begin with `produce.py`.
"""
