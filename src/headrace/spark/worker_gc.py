"""Sparing a Spark worker the search for garbage in what lasts as long as it does.

Spark's daemon collects garbage whenever a task is over. Most of what it looks at are modules: 70 ms
of the processor each time, as long as it takes to read half a million messages. So after its first
task a worker sets aside what it has then; what later tasks leave behind is collected as before.
"""

from __future__ import annotations

import gc
import sys
from functools import cache

from headrace.spark.limited_daemon import MODULE

_DAEMONS = ("pyspark.daemon", MODULE)


@cache
def freeze_long_lived() -> bool:
    """Once per process, and only in one that Spark's daemon has forked."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(main, "name", "") not in _DAEMONS:
        return False
    gc.collect()
    gc.freeze()
    return True
