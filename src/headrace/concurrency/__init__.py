"""Building blocks for code that does several things at once; every service and client uses them.

`tasks` holds background tasks that one object owns and ends. `locks` lets one caller in at a time:
by key among tasks, or among threads. `retry` does work again after failures that pass, inside a
deadline. `loop_thread` runs an event loop for callers that block. Time and chance come from the
runtime, so all of it runs in the simulator too; only `loop_thread` and `locks.ThreadLock` touch
threads. Begin with `tasks`.
"""
