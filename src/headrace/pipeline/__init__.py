"""Pipelines: what a user declares, and the services that run it on Spark.

In comes an application that somebody wrote with the decorators (`declare`). It becomes a plan
(`plan`): a logical one that says what was declared, and a physical one that says what runs where.
The controller (`controller`) owns applications, their journal and their containers; it starts
containers and decides when one is dead. A container (`container`) is a Spark driver that runs its
operators as streaming queries and reports to the controller over the umbilical. Begin with
`declare/application.py` for what people write, and with `container/container.py` for what runs.
"""
