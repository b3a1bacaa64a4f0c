"""headrace pipeline, container, operator, window, event and dead-letters.

A script or a plan comes in and is submitted to the controller (`pipelines.py`, `deploy.py`), or is
looked at without a server (`plan.py`); what the controller tells goes out as tables
(`pipeline_view.py`, `inspect.py`). `change.py` changes a pipeline while it runs. `pipeline_runs.py`
reads what is submitted. Nothing here keeps state of its own. Begin with `pipelines.py`.
"""
