"""A Spark session as this project runs it, and the streaming queries in it.

In come an application's Spark settings; out come a session and running queries whose progress
somebody else reports. `java.py` finds the Java that runs Spark, `session.py` has the one table of
settings and starts a session with them. `queries.py` runs streaming queries and collects their
progress for a container, `script.py` does so for an ordinary PySpark script. Whoever starts a
session owns it and stops it. Begin with `session.py`.
"""
