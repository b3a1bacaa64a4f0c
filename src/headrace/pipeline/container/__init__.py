"""A container: the driver process that runs operators as Spark queries and sends heartbeats."""
