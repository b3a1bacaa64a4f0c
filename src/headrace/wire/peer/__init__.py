"""What the processes of brokers say to each other: requests, answers and notices, many at a time on
one link, over unix sockets or TCP.

`frames.py` holds the byte layout. What a head and a body mean is the business of whoever sends
them; here they are bytes. A link begins with a login in which both sides prove that they hold the
cluster's secret (`login.py`), and nothing else is said before. There is no table of commands.
"""
