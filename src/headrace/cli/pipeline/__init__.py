"""headrace pipeline, container, operator, window, event, dead-letters and spark-conf.

A script, a project or a plan comes in and is submitted to the controller (`pipelines.py`,
`projects.py`), or is looked at without a server (`plan.py`); what the controller tells goes out as
tables (`inspect.py`). `submission.py` reads what is submitted. Nothing here keeps state of its own.
Begin with `pipelines.py`.
"""
