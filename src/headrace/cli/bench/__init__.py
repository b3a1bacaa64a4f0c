"""headrace bench: how much a broker takes and gives.

A mode, sizes and a duration come in; figures go out, as a table, JSON, or a report of two files.
`bench.py` is the command and owns the topic that it makes, `load.py` owns the connections that send
and poll, `figures.py` counts, `report.py` draws. Begin with `bench.py`.
"""
